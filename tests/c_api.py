"""Runs a SavedModel through TensorFlow's C library, as servers do; Python's TensorFlow is never imported.

A program for tests: standard input is {"tensorflow": folder of the package, "op_libraries", "folder", "inputs":
{tensor name: {"dtype", "values", "shape"}}, "outputs": [tensor name]}; standard output a list of such arrays.
"""

import ctypes
import json
import math
import os
import sys

TYPES = {
    "float32": (1, ctypes.c_float),
    "int32": (3, ctypes.c_int32),
    "string": (7, None),
    "int64": (9, ctypes.c_int64),
}
STRING_SIZE = 24  # of TF_TString


class Output(ctypes.Structure):
    _fields_ = [("operation", ctypes.c_void_p), ("index", ctypes.c_int)]


class Library:
    """The functions of the C API that take and give pointers."""

    POINTERS = (
        "TF_NewStatus TF_NewGraph TF_NewSessionOptions TF_LoadSessionFromSavedModel TF_GraphOperationByName "
        "TF_AllocateTensor TF_TensorData TF_LoadLibrary TF_StringGetDataPointer"
    )

    def __init__(self, folder):
        ctypes.CDLL(os.path.join(folder, "libtensorflow_framework.so.2"), mode=ctypes.RTLD_GLOBAL)
        self.functions = ctypes.CDLL(os.path.join(folder, "libtensorflow_cc.so.2"), mode=ctypes.RTLD_GLOBAL)
        for name in self.POINTERS.split():
            getattr(self.functions, name).restype = ctypes.c_void_p
        for name in ("TF_Dim", "TF_TensorByteSize", "TF_StringGetSize"):
            getattr(self.functions, name).restype = ctypes.c_size_t
        self.functions.TF_Message.restype = ctypes.c_char_p
        self.status = ctypes.c_void_p(self.functions.TF_NewStatus())

    def call(self, name, *arguments):
        """A function whose last parameter is the status."""
        result = getattr(self.functions, name)(*arguments, self.status)
        if self.functions.TF_GetCode(self.status):
            raise RuntimeError(self.functions.TF_Message(self.status).decode())
        return result


def tensor_of(library, array):
    functions, shape = library.functions, array["shape"]
    number, ctype = TYPES[array["dtype"]]
    count = math.prod(shape)
    size = count * (STRING_SIZE if ctype is None else ctypes.sizeof(ctype))
    dimensions = (ctypes.c_int64 * len(shape))(*shape)
    tensor = ctypes.c_void_p(functions.TF_AllocateTensor(number, dimensions, len(shape), ctypes.c_size_t(size)))
    data = functions.TF_TensorData(tensor)
    if ctype is not None:
        ctypes.memmove(data, (ctype * count)(*array["values"]), size)
        return tensor
    for i, value in enumerate(array["values"]):
        place, text = ctypes.c_void_p(data + i * STRING_SIZE), bytes.fromhex(value)
        functions.TF_StringInit(place)
        functions.TF_StringCopy(place, text, ctypes.c_size_t(len(text)))
    return tensor


def array_of(library, tensor):
    functions = library.functions
    shape = [functions.TF_Dim(tensor, axis) for axis in range(functions.TF_NumDims(tensor))]
    name, ctype = next((n, c) for n, (number, c) in TYPES.items() if number == functions.TF_TensorType(tensor))
    data, count = functions.TF_TensorData(tensor), math.prod(shape)
    if ctype is not None:
        return {"dtype": name, "shape": shape, "values": list((ctype * count).from_address(data)) if count else []}
    values = []
    for i in range(count):
        place = ctypes.c_void_p(data + i * STRING_SIZE)
        start, size = functions.TF_StringGetDataPointer(place), functions.TF_StringGetSize(place)
        values.append(ctypes.string_at(start, size).hex())
    return {"dtype": name, "shape": shape, "values": values}


def main():
    job = json.load(sys.stdin)
    library = Library(job["tensorflow"])
    functions = library.functions
    for path in job["op_libraries"]:
        library.call("TF_LoadLibrary", path.encode())
    graph, options = ctypes.c_void_p(functions.TF_NewGraph()), ctypes.c_void_p(functions.TF_NewSessionOptions())
    tags = (ctypes.c_char_p * 1)(b"serve")
    session = ctypes.c_void_p(
        library.call("TF_LoadSessionFromSavedModel", options, None, job["folder"].encode(), tags, 1, graph, None)
    )

    def outputs_of(names):
        places = []
        for name in names:
            operation, index = name.split(":")
            places.append(Output(functions.TF_GraphOperationByName(graph, operation.encode()), int(index)))
        return (Output * len(places))(*places)

    inputs = job["inputs"]
    tensors = [tensor_of(library, array) for array in inputs.values()]
    results = (ctypes.c_void_p * len(job["outputs"]))()
    library.call(
        "TF_SessionRun",
        session,
        None,
        outputs_of(inputs),
        (ctypes.c_void_p * len(tensors))(*tensors),
        len(tensors),
        outputs_of(job["outputs"]),
        results,
        len(results),
        None,
        0,
        None,
    )
    assert "tensorflow" not in sys.modules
    json.dump([array_of(library, ctypes.c_void_p(result)) for result in results], sys.stdout)


if __name__ == "__main__":
    main()
