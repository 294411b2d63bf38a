// Package device says what a block store needs of an accelerator: pinned host memory,
// copies between it and the device's memory on streams, and events. The store copies
// between its cache, which it registers with the device, and the caller's memory there.
//
// [Host] is a device whose memory is the host's. It is what a store uses unless it is
// given another one. Module github.com/kv3fs/kv3fs/cuda has CUDA's.
package device

// A Device is an accelerator, as one process sees it. Any number of goroutines may call
// its methods and those of its streams and events, except where they say otherwise.
//
// No method waits for copies, except Event.Wait, Stream.Close and Close. Any of them may
// hang if the device does; the store bounds its own waits.
type Device interface {
	// Name says which device it is, for logs and errors.
	Name() string

	// Alloc allocates memory on the device. It is for programs without an engine that
	// does: see NewBuffer for memory that is there already.
	Alloc(sizeBytes int64) (*Buffer, error)
	// Free releases what Alloc returned. No copy may be using it.
	Free(b *Buffer) error

	// AllocHost allocates host memory that the device can access: pinned.
	AllocHost(sizeBytes int64) ([]byte, error)
	// FreeHost releases what AllocHost returned. No copy may be using it.
	FreeHost(mem []byte) error

	// Register pins host memory that something else has allocated, such as a mapping. It
	// touches all of it, so it takes time and memory.
	Register(mem []byte) error
	// Unregister undoes Register, with the same mem. No copy may be using it.
	Unregister(mem []byte) error

	// NewStream returns a stream. Streams do not wait for each other.
	NewStream() (Stream, error)
	// NewEvent returns an event.
	NewEvent() (Event, error)

	// Close releases the device. Close its streams, events and direct files first.
	Close() error
}

// A Stream is a queue of copies that the device works through in order, one after the
// other. Its methods queue and return. An error means that nothing was queued, unless it
// is that of an earlier copy, which a device may report late: only an Event that was
// recorded afterwards tells that what was queued has ended. One goroutine at a time may
// use a stream.
type Stream interface {
	// ToDevice copies src, which is pinned, into the device's memory.
	ToDevice(dst Place, src []byte) error
	// ToHost fills dst, which is pinned, from the device's memory.
	ToHost(dst []byte, src Place) error
	// After makes what is queued from now on wait until the event has occurred: what its
	// last Record covered has ended. An event that was never recorded has occurred.
	After(e Event) error
	// Close releases the stream when what was queued has ended.
	Close() error
}

// An Event tells when a stream has worked off what was queued before a certain moment.
type Event interface {
	// Record makes the event occur when what is in the stream's queue now has ended. An
	// earlier Record is forgotten.
	Record(s Stream) error
	// Wait blocks until the event has occurred. It returns the error of a copy that has
	// failed. After an error of the device itself copies may still be running.
	Wait() error
	// Close releases the event. Nothing may be waiting for it.
	Close() error
}
