/* Memory that Python's buffer protocol lends out: numpy arrays, memoryviews and torch tensors wrap
 * it without a copy.
 *
 *     Memory(address, length, readonly, owner)
 *
 * It points to bytes that somebody else keeps valid as long as `owner` lives, and holds `owner`
 * until it is released, or until nothing refers to it any more: each view holds it. `release` while
 * there are views is a BufferError, as it is for a memoryview; `leave` lets go with the last view.
 * So no view ever shows memory that was given back. In a child of fork it cannot be viewed: the
 * engine's memory is not there.
 *
 * Owner: whoever holds the interpreter's lock.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <unistd.h>

typedef struct {
    PyObject base;
    void *bytes;
    Py_ssize_t length;
    Py_ssize_t views;
    PyObject *owner; /* NULL: released */
    int readonly;
    int left; /* nobody may view it any more */
    pid_t process;
} Memory;

static PyObject *memory_new(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *words[] = {"address", "length", "readonly", "owner", NULL};
    unsigned long long address;
    Py_ssize_t length;
    int readonly;
    PyObject *owner;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "KnpO", words, &address, &length, &readonly,
                                     &owner))
        return NULL;
    if (length < 0)
        return PyErr_Format(PyExc_ValueError, "a length of %zd bytes", length);
    Memory *memory = (Memory *)type->tp_alloc(type, 0);
    if (!memory)
        return NULL;
    memory->bytes = (void *)(uintptr_t)address;
    memory->length = length;
    memory->readonly = readonly;
    memory->process = getpid();
    Py_INCREF(owner);
    memory->owner = owner;
    return &memory->base;
}

static int memory_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Memory *)self)->owner);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int memory_clear(PyObject *self)
{
    Py_CLEAR(((Memory *)self)->owner);
    return 0;
}

static void memory_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    memory_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int memory_view(PyObject *self, Py_buffer *view, int flags)
{
    Memory *memory = (Memory *)self;
    view->obj = NULL;
    if (!memory->owner || memory->left) {
        PyErr_SetString(PyExc_ValueError, "this buffer was given back");
        return -1;
    }
    if (memory->process != getpid()) {
        PyErr_SetString(PyExc_BufferError,
                        "this buffer belongs to the parent of this process; it is not here");
        return -1;
    }
    if (PyBuffer_FillInfo(view, self, memory->bytes, memory->length, memory->readonly, flags))
        return -1;
    memory->views++;
    return 0;
}

static void memory_unview(PyObject *self, Py_buffer *view)
{
    Memory *memory = (Memory *)self;
    (void)view;
    if (--memory->views == 0 && memory->left)
        Py_CLEAR(memory->owner);
}

static PyObject *memory_release(PyObject *self, PyObject *unused)
{
    Memory *memory = (Memory *)self;
    (void)unused;
    if (memory->views)
        return PyErr_Format(PyExc_BufferError,
                            "%zd views of this buffer are in use (numpy arrays, tensors, "
                            "memoryviews): drop them first",
                            memory->views);
    Py_CLEAR(memory->owner);
    Py_RETURN_NONE;
}

static PyObject *memory_leave(PyObject *self, PyObject *unused)
{
    Memory *memory = (Memory *)self;
    (void)unused;
    memory->left = 1;
    if (!memory->views)
        Py_CLEAR(memory->owner);
    Py_RETURN_NONE;
}

static Py_ssize_t memory_length(PyObject *self)
{
    return ((Memory *)self)->length;
}

static PyObject *memory_views(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSsize_t(((Memory *)self)->views);
}

static PyObject *memory_released(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(!((Memory *)self)->owner || ((Memory *)self)->left);
}

static PyMethodDef methods[] = {
    {"release", memory_release, METH_NOARGS,
     "Let go of the memory. BufferError while it is viewed; twice is once."},
    {"leave", memory_leave, METH_NOARGS,
     "Let go of the memory with the last view; there can be no new ones."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef getters[] = {
    {"views", memory_views, NULL, "How many views of it are in use.", NULL},
    {"released", memory_released, NULL, "Whether it was given back.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Bytes that belong to another owner, lent by the buffer protocol."},
    {Py_tp_new, memory_new},
    {Py_tp_dealloc, memory_dealloc},
    {Py_tp_traverse, memory_traverse},
    {Py_tp_clear, memory_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_sq_length, memory_length},
    {Py_bf_getbuffer, memory_view},
    {Py_bf_releasebuffer, memory_unview},
    {0, NULL}};

static PyType_Spec spec = {.name = "harp._memory.Memory",
                           .basicsize = sizeof(Memory),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                           .slots = slots};

static int module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    if (!type)
        return -1;
    int error = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return error;
}

/* The conversion from a function to void * is what Python's table asks for; POSIX allows it. */
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)(uintptr_t)module_exec}, {0, NULL}};

static PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "harp._memory", .m_slots = module_slots};

PyMODINIT_FUNC PyInit__memory(void)
{
    return PyModuleDef_Init(&definition);
}
