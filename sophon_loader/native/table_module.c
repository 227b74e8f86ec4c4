/*
 * sophon_loader.native._table: table.h for Python. The GIL is released while a table is applied.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "table.h"

enum { VALUES = 256 };

/* What is wrong with the sizes; NULL if nothing is. No product here can overflow. */
static const char *fault_of(const Py_buffer *pixels, const Py_buffer *table, const Py_buffer *out,
                            Py_ssize_t item_nbytes)
{
    if (item_nbytes != 1 && item_nbytes != 2 && item_nbytes != 4 && item_nbytes != 8)
        return "item_nbytes must be 1, 2, 4 or 8";
    if (table->len == 0 || table->len % (VALUES * item_nbytes))
        return "table must have 256 items for each of one or more channels";
    if (pixels->len % (table->len / (VALUES * item_nbytes)))
        return "pixels must have a value for each channel of the table";
    if (out->len % item_nbytes || out->len / item_nbytes != pixels->len)
        return "out must have an item for each value of the pixels";
    if ((uintptr_t)table->buf % (size_t)item_nbytes || (uintptr_t)out->buf % (size_t)item_nbytes)
        return "table and out must be aligned to their items";
    return NULL;
}

static PyObject *apply(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer pixels, table, out;
    Py_ssize_t item_nbytes;
    int planes;
    if (!PyArg_ParseTuple(args, "y*y*w*np:apply", &pixels, &table, &out, &item_nbytes, &planes))
        return NULL;

    const char *fault = fault_of(&pixels, &table, &out, item_nbytes);
    if (fault) {
        PyErr_SetString(PyExc_ValueError, fault);
    } else {
        const size_t channels = (size_t)(table.len / (VALUES * item_nbytes));
        Py_BEGIN_ALLOW_THREADS
        table_apply(pixels.buf, (size_t)pixels.len / channels, channels, table.buf, out.buf,
                    (size_t)item_nbytes, planes != 0);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&table);
    PyBuffer_Release(&out);
    if (fault) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"apply", apply, METH_VARARGS, "apply(pixels, table, out, item_nbytes, planes)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_table",
    .m_doc = "A table of 256 items per channel, applied to pixels; see sophon_loader.pipeline.ends.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__table(void) { return PyModuleDef_Init(&definition); }
