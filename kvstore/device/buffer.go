package device

import "fmt"

// Buffer is a range of a device's memory, such as an engine's KV cache or one layer of
// it. It says where that memory is and how much of it there is, so that no copy goes
// beyond it. A Buffer does not change.
type Buffer struct {
	device    Device
	addr      uint64
	sizeBytes int64
	host      []byte // the memory itself, of a Host
}

// NewBuffer names memory that is there already: sizeBytes at this address of the device,
// as its own programming interface has it. The memory stays allocated for as long as a
// store may use it. For a [Host], use Wrap.
func NewBuffer(d Device, addr uint64, sizeBytes int64) (*Buffer, error) {
	if d == nil || addr == 0 || sizeBytes <= 0 || addr+uint64(sizeBytes) < addr {
		return nil, fmt.Errorf("device: no memory has %d bytes at %#x", sizeBytes, addr)
	}
	return &Buffer{device: d, addr: addr, sizeBytes: sizeBytes}, nil
}

// Device returns the device whose memory it is.
func (b *Buffer) Device() Device { return b.device }

// Addr returns its address there.
func (b *Buffer) Addr() uint64 { return b.addr }

// SizeBytes returns its size.
func (b *Buffer) SizeBytes() int64 { return b.sizeBytes }

// At returns the place with this offset.
func (b *Buffer) At(offset int64) Place { return Place{Buffer: b, Offset: offset} }

// Place is where in a buffer something begins.
type Place struct {
	Buffer *Buffer
	Offset int64

	// After, unless it is nil, is an event of the same device that a copy from or to this
	// place waits for: what computes the bytes that are saved, or still reads those that a
	// load replaces.
	After Event
}

// Addr returns the place's address on the device.
func (p Place) Addr() uint64 { return p.Buffer.addr + uint64(p.Offset) }

// Check returns an error unless the buffer has so many bytes there.
func (p Place) Check(sizeBytes int64) error {
	switch {
	case p.Buffer == nil:
		return fmt.Errorf("device: a place without a buffer")
	case p.Offset < 0 || sizeBytes < 0 || p.Offset > p.Buffer.sizeBytes-sizeBytes:
		return fmt.Errorf("device: %d bytes at offset %d are outside of a buffer of %d", sizeBytes, p.Offset, p.Buffer.sizeBytes)
	}
	return nil
}
