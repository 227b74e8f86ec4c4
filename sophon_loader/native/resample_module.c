/*
 * sophon_loader.native._resample: resample.h for Python. The GIL is released during the work.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "resample.h"

/* What is wrong with the sizes; NULL if nothing is. No product here can overflow. */
static const char *fault_of(const resample_job *job, const Py_buffer *pixels, const Py_buffer *out)
{
    const size_t most = RESAMPLE_MAX_SIDE, sides[] = {job->width, job->height, job->out_width, job->out_height};
    for (int i = 0; i < 4; i++)
        if (sides[i] < 1 || sides[i] > most) return "sides must be 1 to 65535 px";
    if (job->channels != 1 && job->channels != 3) return "channels must be 1 or 3";
    if ((size_t)pixels->len != job->width * job->height * job->channels)
        return "pixels must have height * width * channels values";
    if ((size_t)out->len != job->out_width * job->out_height * job->channels)
        return "out must have height * width * channels values";
    const char *a = pixels->buf, *b = out->buf;
    if (a < b + out->len && b < a + pixels->len) return "pixels and out must not overlap";
    return NULL;
}

static PyObject *resize(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer pixels, out;
    Py_ssize_t width, height, channels, out_width, out_height;
    int order, plain;
    resample_job job = {0};
    if (!PyArg_ParseTuple(args, "y*(nnn)w*(nn)(ffff)iip:resize", &pixels, &height, &width, &channels, &out,
                          &out_width, &out_height, &job.box[0], &job.box[1], &job.box[2], &job.box[3],
                          &job.filter, &order, &plain))
        return NULL;

    job.pixels = pixels.buf;
    job.width = (size_t)width, job.height = (size_t)height, job.channels = (size_t)channels;
    job.out_width = (size_t)out_width, job.out_height = (size_t)out_height;
    job.order = (resample_order)order, job.plain = plain != 0;
    const char *fault = fault_of(&job, &pixels, &out);
    resample_status status = RESAMPLE_BAD;
    if (!fault) {
        Py_BEGIN_ALLOW_THREADS
        status = resample(&job, out.buf);
        Py_END_ALLOW_THREADS
        if (status == RESAMPLE_BAD) fault = "box must lie inside the picture, and filter be one of Pillow's";
    }
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&out);
    if (fault) {
        PyErr_SetString(PyExc_ValueError, fault);
        return NULL;
    }
    if (status == RESAMPLE_NO_MEMORY) return PyErr_NoMemory();
    return PyBool_FromLong(status == RESAMPLE_DONE);
}

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS,
     "resize(pixels, (height, width, channels), out, (width, height), box, filter, order, plain) -> bool"},
    {NULL, NULL, 0, NULL},
};

static int add_constants(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "MAX_SIDE", RESAMPLE_MAX_SIDE) ||
        PyModule_AddIntConstant(module, "DOWN_FIRST_NEVER", RESAMPLE_DOWN_FIRST_NEVER) ||
        PyModule_AddIntConstant(module, "DOWN_FIRST_TALL", RESAMPLE_DOWN_FIRST_TALL) ||
        PyModule_AddIntConstant(module, "DOWN_FIRST_CHEAPER", RESAMPLE_DOWN_FIRST_CHEAPER))
        return -1;
    return PyModule_AddStringConstant(module, "instructions", resample_instructions());
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_constants}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_resample",
    .m_doc = "Pillow's resize, and the end of a chain; see sophon_loader.native.fused.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__resample(void) { return PyModuleDef_Init(&definition); }
