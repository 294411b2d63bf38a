package daemon

import (
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/host"
)

// Limits bound what the clients of a daemon hold at once, so that nobody's use stops the
// service for the others. A user other than root may hold a quarter of each, and a
// sixteenth is kept for root. 0 means the default.
type Limits struct {
	// MappedBytes bounds the mappings of clients' shared memory. Default: 32 times the
	// memory, at most 32 TiB.
	MappedBytes int64
	// Registrations bounds iovs and rings together. Default: what the limits of process
	// and kernel allow, at most wire.MaxIovs.
	Registrations int
	// RingUsers bounds the users that have submit semaphores, each user a set; only root can
	// have one more. Default: what the limit on open files allows, at most 4096.
	RingUsers int
	// Files, Requests and Nodes: see fuseserver.Limits, whose defaults hold but for Nodes:
	// as many as a 64th of the memory holds, at least a million.
	Files, Requests, Nodes int
}

// nodeBytes is what a file that the kernel knows takes in the daemon.
const nodeBytes = 400

// mount returns the limits of the mount on a host.
func (l Limits) mount(h host.Host) fuseserver.Limits {
	const part, fewest = 64, 1 << 20
	nodes := l.Nodes
	if nodes == 0 {
		memory, _ := h.MemoryBytes() // 0 if it cannot be found out
		nodes = int(max(memory/part/nodeBytes, fewest))
	}
	return fuseserver.Limits{Files: l.Files, Requests: l.Requests, Nodes: nodes}
}

// A mapping costs page tables where it is touched, a byte for every 512. So 32 times the
// memory costs at most a sixteenth of it. Address space ends at 128 TiB.
const (
	mappedPerMemory = 32
	mostMappedBytes = 32 << 40
)

// mappedBytes returns the limit of mapped bytes on a host.
func (l Limits) mappedBytes(h host.Host) int64 {
	if l.MappedBytes > 0 {
		return l.MappedBytes
	}
	memory, err := h.MemoryBytes()
	if err != nil || memory > mostMappedBytes/mappedPerMemory {
		return mostMappedBytes
	}
	return memory * mappedPerMemory
}
