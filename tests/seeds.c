/* The seeds of TensorFlow's random numbers, from a space of 2^SEED_BITS instead of 2^32: then threads
   draw the same numbers often. Loaded with LD_PRELOAD, it replaces std::random_device::_M_getval. */
#include <stdlib.h>
#include <sys/random.h>

unsigned int _ZNSt13random_device9_M_getvalEv(void *device) {
  unsigned int seed = 0;
  const char *bits = getenv("SEED_BITS");
  while (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
  }
  return bits ? seed & ((1u << atoi(bits)) - 1) : seed;
}
