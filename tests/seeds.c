/* The seeds of TensorFlow's random numbers, from a space of 2^SEED_BITS instead of 2^32: then threads
   of a process draw the same numbers often. Each process has a space of its own, since two workers
   with the same number for a step would receive each other's tensors. Loaded with LD_PRELOAD, it
   replaces std::random_device::_M_getval. */
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

unsigned int _ZNSt13random_device9_M_getvalEv(void *device) {
  unsigned int seed = 0;
  const char *bits = getenv("SEED_BITS");
  while (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
  }
  unsigned int space = bits ? 1u << atoi(bits) : 0;
  return bits ? seed % space + space * (unsigned int)getpid() : seed;
}
