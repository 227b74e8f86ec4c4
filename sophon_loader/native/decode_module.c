/*
 * sophon_loader.native._decode: decode.h for Python.
 *
 * The GIL is released while a scan is decoded. Each running call has a context to itself; idle ones
 * wait in a small pool, which only holders of the GIL touch, so that their buffers and tables serve
 * the next call of whatever thread.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "decode.h"

enum {
    POOL_SIZE = 16, /* idle contexts kept, about 170 KB each plus the buffers of their last file */
    /* A context whose buffers have grown beyond this is not kept. */
    KEEP_MAX_NBYTES = 16 << 20
};

typedef struct {
    decode_ctx *idle[POOL_SIZE];
    int n_idle;
} module_state;

static decode_ctx *take_context(module_state *state)
{
    if (state->n_idle) return state->idle[--state->n_idle];
    return decode_new();
}

static void give_back(module_state *state, decode_ctx *ctx)
{
    if (decode_nbytes(ctx) <= KEEP_MAX_NBYTES && state->n_idle < POOL_SIZE)
        state->idle[state->n_idle++] = ctx;
    else
        decode_free(ctx);
}

/* Bytes and not any buffer: nobody can change them while they are read without the GIL. */
static PyObject *decode_with(decode_ctx *ctx, const pixel_ops *ops, PyObject *data,
                             jpegcrop_rect rect)
{
    unsigned n_channels;
    const uint8_t *src = (const uint8_t *)PyBytes_AS_STRING(data);
    decode_status status = decode_begin(ctx, src, (size_t)PyBytes_GET_SIZE(data), &rect, &n_channels);
    if (status != DECODE_OK) Py_RETURN_NONE;
    Py_ssize_t nbytes = (Py_ssize_t)rect.width * (Py_ssize_t)rect.height * (Py_ssize_t)n_channels;
    PyObject *pixels = PyByteArray_FromStringAndSize(NULL, nbytes);
    if (!pixels) return NULL;
    uint8_t *out = (uint8_t *)PyByteArray_AS_STRING(pixels);
    Py_BEGIN_ALLOW_THREADS
    status = decode_run(ctx, ops, out);
    Py_END_ALLOW_THREADS
    if (status == DECODE_OK)
        return Py_BuildValue("NIII", pixels, (unsigned)rect.height, (unsigned)rect.width, n_channels);
    Py_DECREF(pixels);
    if (status == DECODE_NO_MEMORY) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *decode(PyObject *module, PyObject *args)
{
    module_state *state = PyModule_GetState(module);
    PyObject *data;
    unsigned x, y, width, height;
    int plain;
    if (!PyArg_ParseTuple(args, "SIIIIp:decode", &data, &x, &y, &width, &height, &plain))
        return NULL;
    const pixel_ops *ops = plain ? &pixels_plain : pixels_fast();
    if (!ops) Py_RETURN_NONE;
    decode_ctx *ctx = take_context(state);
    if (!ctx) return PyErr_NoMemory();
    PyObject *answer = decode_with(ctx, ops, data, (jpegcrop_rect){x, y, width, height});
    give_back(state, ctx);
    return answer;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS,
     "decode(data, x, y, width, height, plain) -> (pixels, height, width, channels) or None"},
    {NULL, NULL, 0, NULL},
};

static void free_module(void *module)
{
    module_state *state = PyModule_GetState(module);
    while (state && state->n_idle) decode_free(state->idle[--state->n_idle]);
}

static int add_constants(PyObject *module)
{
    return PyModule_AddIntConstant(module, "fast", pixels_fast() != NULL);
}

/* Without slots that say otherwise, Python keeps the GIL on for us and sub-interpreters with a GIL
 * of their own out: both would need a lock around the pool. */
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)add_constants}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_decode",
    .m_doc = "JPEG regions to Pillow's pixels; see sophon_loader.native.fused.",
    .m_size = sizeof(module_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_free = free_module,
};

PyMODINIT_FUNC PyInit__decode(void) { return PyModuleDef_Init(&definition); }
