/* safetensors.h: what its reader and its writer share. */
#ifndef RIDGE_IO_SAFETENSORS_H
#define RIDGE_IO_SAFETENSORS_H

#include "io.h"

enum { IO_SAFETENSORS_HEADER = 100000000 }; /* bytes, the format's limit */

#endif
