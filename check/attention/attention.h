/* attention.h: what the files of check/attention share. */
#ifndef RIDGE_CHECK_ATTENTION_H
#define RIDGE_CHECK_ATTENTION_H

#include "check/family.h"

void attention_oracle(oracle_run *run);

#endif
