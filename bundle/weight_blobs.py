"""Layout of the weight file of a Core ML package, in MILBlob's storage format.

The file starts with a header of 64 bytes: blob count (uint32), version (uint32), reserved bytes. Each blob
has a descriptor of 64 bytes. Its fields are a mark (uint32), a data type (uint32), and three uint64 values:
the size in bytes, the offset of the data, and the number of padding bits. Programs refer to a blob by the
offset of its descriptor.
"""

import struct

HEADER = struct.Struct("<II")
ENTRY = struct.Struct("<IIQQQ")
MARK, VERSION = 0xDEADBEEF, 2
BLOCK = 64  # bytes of the header and of a descriptor
