/* number.h: pseudo-random numbers, elements of a dtype, and numbers in text. */
#ifndef RIDGE_NUMBER_H
#define RIDGE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

uint64_t random_next(uint64_t *state);                       /* splitmix64 */
float random_normal(uint64_t *state);                        /* close to N(0,1): the sum of four uniform numbers */
double dtype_load(const void *memory, uint32_t dtype);       /* one element as a double */
void dtype_store(void *memory, uint32_t dtype, float value); /* f32, bf16 or f16 */
double dtype_ulp(double value, uint32_t dtype);              /* spacing of the dtype at |value| */
double dtype_unit(uint32_t dtype);                           /* unit roundoff: half of that at 1 */

/* A whole number in decimal digits, nothing around it, within low .. high. */
bool number_whole(const char *text, uint64_t low, uint64_t high, uint64_t *value);

#endif
