/* swiglu.h: what family.c registers of the other file. */
#ifndef RIDGE_CHECK_SWIGLU_H
#define RIDGE_CHECK_SWIGLU_H

#include "check/family.h"

void oracle_swiglu(oracle_run *run);

#endif
