/* quantize.h: what family.c registers of the other file. */
#ifndef RIDGE_CHECK_QUANTIZE_H
#define RIDGE_CHECK_QUANTIZE_H

#include "check/family.h"

void oracle_quantize(oracle_run *run);

#endif
