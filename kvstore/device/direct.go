package device

import (
	"fmt"
	"os"
)

// Direct is a device that reads files into its memory and writes them from there without
// the host's, as cuFile does. A Device that can has these methods, too.
//
// Calls may hang with the storage; bound them. An error that is a [*DirectError] is the
// interface's own: the caller may move the same bytes through host memory instead.
type Direct interface {
	// RegisterBuffer prepares device memory, as cuFileBufRegister does. Transfers with
	// other memory work as well, and are slower.
	RegisterBuffer(b *Buffer) error
	// UnregisterBuffer undoes it.
	UnregisterBuffer(b *Buffer) error

	// OpenDirect registers an open file, as cuFileHandleRegister does. f stays open and
	// stays the caller's until after DirectFile.Close.
	OpenDirect(f *os.File) (DirectFile, error)
}

// DirectFile is a file that was registered. Any number of goroutines may use it.
type DirectFile interface {
	// ReadAt fills sizeBytes at the place from the file. It returns how many bytes it has
	// moved: fewer without an error only at the end of the file.
	ReadAt(dst Place, sizeBytes, fileOffset int64) (int64, error)
	// WriteAt writes sizeBytes of the place to the file, all of them unless it returns an
	// error.
	WriteAt(src Place, sizeBytes, fileOffset int64) (int64, error)
	// Close ends the registration. Nothing may be using it.
	Close() error
}

// Numbers of errors of cuFile, from its API reference (CUfileOpError). All but DirectRegistered
// and those of a buffer say that the file, the device or the driver cannot do direct transfers.
const (
	DirectNotInitialized = 5001 // the nvidia-fs driver is not loaded
	DirectPlatform       = 5007 // not supported on this platform
	DirectFileSystem     = 5008 // not supported on this file
	DirectDevice         = 5009 // not supported on this device
	DirectPointer        = 5012 // not a pointer of the device
	DirectMemoryType     = 5013 // not memory of a kind that can be registered
	DirectPointerRange   = 5014 // beyond the end of an allocation
	DirectContext        = 5015 // memory of another context
	DirectMappingSize    = 5016 // more memory than the device can map
	DirectMappingRange   = 5017 // beyond the end of what is registered
	DirectRegistered     = 5023 // the buffer is registered already
	DirectInternal       = 5030 // internal error: what some file systems answer to the first transfer
	DirectPinning        = 5036 // not enough of the device's memory can be pinned
)

// DirectError is an error that the interface for direct transfers has a number for.
type DirectError struct {
	Call string
	Code int // above 5000 for cuFile's own
	Text string
}

func (e *DirectError) Error() string {
	return fmt.Sprintf("device: %s: error %d: %s", e.Call, e.Code, e.Text)
}

// OfBuffer reports whether the error is that of one buffer: transfers of others may succeed.
func (e *DirectError) OfBuffer() bool {
	return e.Code >= DirectPointer && e.Code <= DirectMappingRange || e.Code == DirectPinning
}
