/*
 * sophon_loader.native._jpegcrop: jpegcrop.h for Python.
 *
 * The GIL is released while a file is read. Each running call has a context to itself; idle ones
 * wait in a small pool, which only holders of the GIL touch, so that their buffers and Huffman
 * tables serve the next call of whatever thread.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "jpegcrop.h"

enum {
    POOL_SIZE = 16, /* idle contexts kept, about 130 KB each plus the buffers of their last file */
    /* A context that has served a larger file is not kept: its buffers are that large as well. */
    KEEP_MAX_NBYTES = 16 << 20
};

typedef struct {
    jpegcrop_ctx *idle[POOL_SIZE];
    int n_idle;
} module_state;

static jpegcrop_ctx *take_context(module_state *state)
{
    if (state->n_idle) return state->idle[--state->n_idle];
    return jpegcrop_new();
}

static void give_back(module_state *state, jpegcrop_ctx *ctx, Py_ssize_t src_nbytes)
{
    if (ctx && src_nbytes <= KEEP_MAX_NBYTES && state->n_idle < POOL_SIZE)
        state->idle[state->n_idle++] = ctx;
    else
        jpegcrop_free(ctx);
}

/* (status, reason, data or None, dx, dy); NULL with an exception when memory is short. */
static PyObject *build_result(jpegcrop_status status, const jpegcrop_result *result)
{
    if (status == JPEGCROP_NO_MEMORY) return PyErr_NoMemory();
    const char *name = jpegcrop_status_name(status);
    if (status != JPEGCROP_OK) return Py_BuildValue("ssOii", name, result->reason, Py_None, 0, 0);
    return Py_BuildValue("ssy#II", name, result->reason, (const char *)result->data,
                         (Py_ssize_t)result->nbytes, (unsigned)result->dx, (unsigned)result->dy);
}

static PyObject *crop(PyObject *module, PyObject *args)
{
    module_state *state = PyModule_GetState(module);
    Py_buffer src;
    unsigned long x, y, width, height;
    int keep_metadata;
    if (!PyArg_ParseTuple(args, "y*kkkkp:crop", &src, &x, &y, &width, &height, &keep_metadata))
        return NULL;

    PyObject *answer = NULL;
    jpegcrop_result result = {0};
    jpegcrop_status status = JPEGCROP_NO_MEMORY;
    jpegcrop_ctx *ctx = take_context(state);
    if (ctx) {
        jpegcrop_rect rect = {(uint32_t)x, (uint32_t)y, (uint32_t)width, (uint32_t)height};
        Py_BEGIN_ALLOW_THREADS
        status = jpegcrop_crop(ctx, src.buf, (size_t)src.len, rect, keep_metadata, &result);
        Py_END_ALLOW_THREADS
    }
    answer = build_result(status, &result);
    give_back(state, ctx, src.len);
    PyBuffer_Release(&src);
    return answer;
}

/* Reads a few hundred bytes: not worth releasing the GIL. */
static PyObject *size(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer src;
    jpegcrop_info info;
    if (!PyArg_ParseTuple(args, "y*:size", &src)) return NULL;
    jpegcrop_status status = jpegcrop_size(src.buf, (size_t)src.len, &info);
    PyBuffer_Release(&src);
    return Py_BuildValue("ssIII", jpegcrop_status_name(status), info.reason, (unsigned)info.width,
                         (unsigned)info.height, info.components);
}

static PyMethodDef methods[] = {
    {"crop", crop, METH_VARARGS,
     "crop(data, x, y, width, height, keep_metadata) -> (status, reason, jpeg or None, dx, dy)"},
    {"size", size, METH_VARARGS, "size(data) -> (status, reason, width, height, components)"},
    {NULL, NULL, 0, NULL},
};

static void free_module(void *module)
{
    module_state *state = PyModule_GetState(module);
    while (state && state->n_idle) jpegcrop_free(state->idle[--state->n_idle]);
}

/* Without slots that say otherwise, Python keeps the GIL on for us and sub-interpreters with a GIL
 * of their own out: both would need a lock around the pool. */
static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_jpegcrop",
    .m_doc = "Lossless JPEG crop in the entropy-coded bits; see sophon_loader.native.",
    .m_size = sizeof(module_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__jpegcrop(void) { return PyModuleDef_Init(&definition); }
