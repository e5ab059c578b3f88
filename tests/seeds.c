/* The seeds of TensorFlow's random numbers, for tests in which requests get the same numbers. Loaded
   with LD_PRELOAD, it replaces std::random_device::_M_getval. */
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

static int fixed;
static unsigned int value;

/* From now on, all new threads of this process draw the same numbers. */
void fix_seed(unsigned int seed) {
  value = seed;
  fixed = 1;
}

void free_seed(void) { fixed = 0; }

/* Where SEED_BITS is set, a seed from a space of 2^SEED_BITS instead of 2^32: then threads of a
   process draw the same numbers often. Each process has a space of its own, since two workers with
   the same number for a step would receive each other's tensors. */
unsigned int _ZNSt13random_device9_M_getvalEv(void *device) {
  unsigned int seed = 0;
  const char *bits = getenv("SEED_BITS");
  while (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
  }
  unsigned int space = bits ? 1u << atoi(bits) : 0;
  return fixed ? value : bits ? seed % space + space * (unsigned int)getpid() : seed;
}
