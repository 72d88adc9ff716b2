"""Sorts a file of little-endian u64 with numpy, in memory and by one thread, file to file."""
import sys

import numpy

source, target = sys.argv[1:3]
numbers = numpy.fromfile(source, dtype="<u8")
numbers.sort()
numbers.tofile(target)
