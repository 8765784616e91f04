/* safetensors.h: what its reader and its writer share. */
#ifndef RIDGE_IO_SAFETENSORS_H
#define RIDGE_IO_SAFETENSORS_H

#include "io.h"

#define io_safetensors_type ridge_io_safetensors_type

enum { IO_SAFETENSORS_HEADER = 100000000 }; /* bytes, the format's limit */

uint32_t io_safetensors_type(const char *name); /* RIDGE_TYPE_NONE: unknown */

#endif
