# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a careful hand gets from Cython alone: a bounded MessagePack reader over a TokenSpeed tick and growing columns.

A tick is read into scratch columns first and applied only when it is whole, as the real codec does. It does not
detokenize.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef extern from *:
    uint16_t bswap16 "__builtin_bswap16"(uint16_t) nogil
    uint32_t bswap32 "__builtin_bswap32"(uint32_t) nogil
    uint64_t bswap64 "__builtin_bswap64"(uint64_t) nogil


cdef struct Reader:
    const uint8_t* at
    const uint8_t* end


cdef int truncated() except -1:
    raise ValueError("the message ends early")


cdef int unexpected(const char* what, uint8_t seen) except -1:
    raise ValueError(f"expected {what.decode()}, found the marker {seen:#04x}")


cdef inline const uint8_t* take(Reader* reader, Py_ssize_t size) except NULL:
    cdef const uint8_t* at = reader.at
    if reader.end - at < size:
        truncated()
    reader.at = at + size
    return at


cdef inline uint16_t load16(const uint8_t* at) noexcept:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return bswap16(value)


cdef inline uint32_t load32(const uint8_t* at) noexcept:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return bswap32(value)


cdef inline uint64_t load64(const uint8_t* at) noexcept:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return bswap64(value)


cdef inline Py_ssize_t array_length(Reader* reader) except -1:
    cdef uint8_t marker = take(reader, 1)[0]
    if marker & 0xF0 == 0x90:
        return marker & 0x0F
    if marker == 0xDC:
        return load16(take(reader, 2))
    if marker == 0xDD:
        return load32(take(reader, 4))
    return unexpected("an array", marker)


cdef inline int64_t unsigned(Reader* reader) except -1:
    cdef uint8_t marker = take(reader, 1)[0]
    if marker < 0x80:
        return marker
    if marker == 0xCC:
        return take(reader, 1)[0]
    if marker == 0xCD:
        return load16(take(reader, 2))
    if marker == 0xCE:
        return load32(take(reader, 4))
    return unexpected("an unsigned integer of at most 32 bits", marker)


cdef inline const uint8_t* text(Reader* reader, Py_ssize_t* size) except NULL:
    cdef uint8_t marker = take(reader, 1)[0]
    if marker & 0xE0 == 0xA0:
        size[0] = marker & 0x1F
    elif marker == 0xD9:
        size[0] = take(reader, 1)[0]
    elif marker == 0xDA:
        size[0] = load16(take(reader, 2))
    elif marker == 0xDB:
        size[0] = load32(take(reader, 4))
    else:
        unexpected("a string", marker)
    return take(reader, size[0])


cdef inline double real(Reader* reader) except? -1.0:
    cdef uint8_t marker = take(reader, 1)[0]
    cdef uint64_t bits
    cdef double value
    if marker != 0xCB:
        unexpected("a float64", marker)
    bits = load64(take(reader, 8))
    memcpy(&value, &bits, 8)
    return value


cdef struct Buffer:
    char* data
    Py_ssize_t size  # bytes
    Py_ssize_t capacity


cdef inline int reserve(Buffer* buffer, Py_ssize_t more) except -1:
    cdef Py_ssize_t capacity
    cdef char* data
    if buffer.size + more > buffer.capacity:
        capacity = max(2 * buffer.capacity, buffer.size + more, 64)
        data = <char*>realloc(buffer.data, capacity)
        if data == NULL:
            raise MemoryError
        buffer.data = data
        buffer.capacity = capacity
    return 0


cdef inline int append(Buffer* buffer, const void* data, Py_ssize_t size) except -1:
    reserve(buffer, size)
    memcpy(buffer.data + buffer.size, data, size)
    buffer.size += size
    return 0


cdef class Columns:
    """Token ids and logprobs of one request."""

    cdef Buffer ids
    cdef Buffer logprobs

    def __dealloc__(self):
        free(self.ids.data)
        free(self.logprobs.data)

    def token_ids(self) -> list:
        return [(<uint32_t*>self.ids.data)[i] for i in range(self.ids.size // 4)]


cdef struct Row:
    PyObject* columns  # borrowed from the dict
    uint32_t tokens
    uint32_t logprobs


cdef class Accumulator:
    """Request id -> columns; ``feed`` applies one tick."""

    cdef dict columns
    cdef Buffer rows
    cdef Buffer ids
    cdef Buffer logprobs

    def __init__(self, rids):
        self.columns = {rid.encode(): Columns() for rid in rids}

    def __dealloc__(self):
        free(self.rows.data)
        free(self.ids.data)
        free(self.logprobs.data)

    def token_ids(self, rid: str) -> list:
        return self.columns[rid.encode()].token_ids()

    cdef Py_ssize_t column(self, Reader* reader, Py_ssize_t rows) except -1:
        if array_length(reader) != rows:
            raise ValueError("ragged columns")
        return rows

    def feed(self, bytes payload):
        cdef Reader reader
        cdef Py_ssize_t elements, rows, i
        cdef Py_ssize_t size = 0
        cdef int64_t count, j
        cdef uint32_t token
        cdef double logprob
        cdef const uint8_t* at
        cdef Row* row
        cdef PyObject* found
        cdef Columns columns

        reader.at = <const uint8_t*>PyBytes_AS_STRING(payload)
        reader.end = reader.at + PyBytes_GET_SIZE(payload)
        elements = array_length(&reader)
        if elements < 9:
            raise ValueError("too few elements")
        text(&reader, &size)  # the tag

        rows = array_length(&reader)
        if rows > reader.end - reader.at:
            truncated()
        self.rows.size = 0
        self.ids.size = 0
        self.logprobs.size = 0
        reserve(&self.rows, rows * sizeof(Row))
        row = <Row*>self.rows.data
        for i in range(rows):
            at = text(&reader, &size)
            rid = PyBytes_FromStringAndSize(<const char*>at, size)
            row[i].columns = PyDict_GetItem(self.columns, rid)

        self.column(&reader, rows)
        for i in range(rows):
            count = array_length(&reader)
            row[i].tokens = <uint32_t>count
            for j in range(count):
                token = <uint32_t>unsigned(&reader)
                append(&self.ids, &token, sizeof(token))
        self.column(&reader, rows)
        for i in range(rows):
            text(&reader, &size)  # finish reasons
        for _ in range(3):  # prompt, completion and cached tokens
            self.column(&reader, rows)
            for i in range(rows):
                unsigned(&reader)
        self.column(&reader, rows)
        for i in range(rows):
            count = array_length(&reader)
            row[i].logprobs = <uint32_t>count
            for j in range(count):
                logprob = real(&reader)
                append(&self.logprobs, &logprob, sizeof(logprob))
        self.column(&reader, rows)
        for i in range(rows):
            count = array_length(&reader)
            if count != row[i].logprobs:
                raise ValueError("ragged logprobs")
            for j in range(count):
                unsigned(&reader)
        for i in range(9, elements):  # rank and load
            unsigned(&reader)

        cdef char* ids = self.ids.data
        cdef char* logprobs = self.logprobs.data
        for i in range(rows):
            found = row[i].columns
            if found != NULL:
                columns = <Columns>found
                append(&columns.ids, ids, 4 * row[i].tokens)
                append(&columns.logprobs, logprobs, 8 * row[i].logprobs)
            ids += 4 * row[i].tokens
            logprobs += 8 * row[i].logprobs
