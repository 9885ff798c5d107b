#pragma once

// NumPy's C interface, for every file that uses it: host_array.cpp imports the table of functions, the others share it.

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL unimem_numpy_api
#ifndef UNIMEM_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif

#include <Python.h>

#include <numpy/arrayobject.h>
