/* unit.h: what every cmocka test includes, and the head of a test. */
#ifndef RIDGE_TESTS_UNIT_H
#define RIDGE_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A test that takes nothing from its group's set-up. */
#define TEST(name) static void name(__attribute__((unused)) void **unused)

#endif
