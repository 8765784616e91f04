/* families.c: every family of ops for the core. */
#include "families.h"
#include "src/internal.h"

#define DECLARE(name) extern const ridge_family ridge_family_##name;
#define ADDRESS(name) &ridge_family_##name,
RIDGE_FAMILIES(DECLARE)

const ridge_family *const ridge_families[] = {RIDGE_FAMILIES(ADDRESS) NULL};
