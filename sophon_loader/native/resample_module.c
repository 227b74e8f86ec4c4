/*
 * sophon_loader.native._resample: resample.h and finish.h for Python. The GIL is released during
 * the work.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "finish.h"
#include "resample.h"

/* What is wrong with the sizes; NULL if nothing is. No product here can overflow. */
static const char *fault_of(const resample_job *job, const Py_buffer *pixels, const Py_buffer *out)
{
    const size_t most = RESAMPLE_MAX_SIDE,
                 sides[] = {job->width, job->height, job->out_width, job->out_height};
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
    if (!PyArg_ParseTuple(args, "y*(nnn)w*(nn)(ffff)iip:resize", &pixels, &height, &width,
                          &channels, &out, &out_width, &out_height, &job.box[0], &job.box[1],
                          &job.box[2], &job.box[3], &job.filter, &order, &plain))
        return NULL;

    job.pixels = pixels.buf;
    job.width = (size_t)width, job.height = (size_t)height, job.channels = (size_t)channels;
    job.out_width = (size_t)out_width, job.out_height = (size_t)out_height;
    job.order = (resample_order)order, job.plain = plain != 0;
    const char *fault = fault_of(&job, &pixels, &out);
    resample_status status = RESAMPLE_BAD;
    if (!fault) {
        Py_BEGIN_ALLOW_THREADS status = resample(&job, out.buf);
        Py_END_ALLOW_THREADS if (status == RESAMPLE_BAD) fault =
            "box must lie inside the picture, and filter be one of Pillow's";
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

/* What is wrong with a result's memory; NULL if nothing is. */
static const char *fault_of_out(const Py_buffer *out, Py_ssize_t channels)
{
    if (out->ndim != 3 || (out->itemsize != 1 && out->itemsize != 4))
        return "out must have three axes, and items of 1 or 4 bytes";
    if (out->shape[0] != channels) return "out must have as many channels as the pixels";
    if ((uintptr_t)out->buf % (size_t)out->itemsize) return "out must be aligned to its items";
    for (int i = 0; i < 3; i++) {
        if (out->shape[i] < 1 || out->shape[i] > RESAMPLE_MAX_SIDE)
            return "sides must be 1 to 65535 px";
        if (out->strides[i] % out->itemsize) return "out must have strides of whole items";
    }
    return NULL;
}

/* No product here can overflow. */
static const char *fault_of_finish(const finish_job *job, const Py_buffer *pixels,
                                   const Py_buffer *table, const Py_buffer *out,
                                   const Py_buffer *fill)
{
    const size_t most = RESAMPLE_MAX_SIDE;
    if (job->in_width < 1 || job->in_width > most || job->in_height < 1 || job->in_height > most ||
        job->channels < 1 || job->channels > 4)
        return "sides must be 1 to 65535 px, and channels 1 to 4";
    if ((size_t)pixels->len != job->in_width * job->in_height * job->channels)
        return "pixels must have height * width * channels values";
    if ((size_t)fill->len != job->channels) return "fill must have a value for each channel";
    if (job->left < -(ptrdiff_t)most || job->left > (ptrdiff_t)most ||
        job->top < -(ptrdiff_t)most || job->top > (ptrdiff_t)most)
        return "left and top must be at most 65535 px";
    const char *fault = fault_of_out(out, (Py_ssize_t)job->channels);
    if (fault) return fault;
    if (!table->buf)
        return out->itemsize == 1 ? NULL : "out must have items of 1 byte where there is no table";
    if (table->len != (Py_ssize_t)(job->channels * 256) * out->itemsize)
        return "table must have 256 of the result's items for each channel";
    if ((uintptr_t)table->buf % (size_t)out->itemsize) return "table must be aligned to its items";
    return NULL;
}

static PyObject *py_finish(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer pixels, table, out, fill;
    PyObject *out_object;
    Py_ssize_t width, height, channels, left, top;
    int flip_horizontal, flip_vertical, transpose;
    if (!PyArg_ParseTuple(args, "y*(nnn)z*O(nn)y*ppp:finish", &pixels, &height, &width, &channels,
                          &table, &out_object, &left, &top, &fill, &flip_horizontal, &flip_vertical,
                          &transpose))
        return NULL;

    const char *fault = NULL;
    const bool have_out = PyObject_GetBuffer(out_object, &out, PyBUF_STRIDES | PyBUF_WRITABLE) == 0;
    if (have_out) {
        finish_job job = {
            .pixels = pixels.buf,
            .in_width = (size_t)width,
            .in_height = (size_t)height,
            .channels = (size_t)channels,
            .left = left,
            .top = top,
            .fill = fill.buf,
            .transpose = transpose != 0,
            .flip_horizontal = flip_horizontal != 0,
            .flip_vertical = flip_vertical != 0,
            .table = table.buf,
            .item_nbytes = (size_t)out.itemsize,
        };
        fault = fault_of_finish(&job, &pixels, &table, &out, &fill);
        if (!fault) {
            job.height = (size_t)out.shape[transpose ? 2 : 1],
            job.width = (size_t)out.shape[transpose ? 1 : 2];
            for (int i = 0; i < 3; i++) job.strides[i] = out.strides[i] / out.itemsize;
            Py_BEGIN_ALLOW_THREADS finish(&job, out.buf);
            Py_END_ALLOW_THREADS
        }
        PyBuffer_Release(&out);
    }
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&table);
    PyBuffer_Release(&fill);
    if (fault) PyErr_SetString(PyExc_ValueError, fault);
    if (fault || !have_out) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"resize", resize, METH_VARARGS,
     "resize(pixels, (height, width, channels), out, (width, height), box, filter, order, plain) "
     "-> bool"},
    {"finish", py_finish, METH_VARARGS,
     "finish(pixels, (height, width, channels), table, out, (left, top), fill, flip_horizontal, "
     "flip_vertical, transpose)"},
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
