package main

import (
	"github.com/kv3fs/kv3fs/internal/daemon"
)

// limitFlags are the flags of "serve" with the prefix limit-: what all clients together
// may hold at once.
type limitFlags struct {
	Mapped        byteSize `placeholder:"SIZE" range:"1MiB..1024TiB" help:"Most bytes of shared memory that are mapped for clients at once. A user other than root may have a quarter of each limit, and a sixteenth is kept for root. Default: 32 times the memory, at most 32 TiB."`
	Registrations int      `placeholder:"N" range:"1..1073741824" help:"Most iovs and rings at once. Default: what the limits on open files and mappings allow."`
	RingUsers     int      `placeholder:"N" range:"1..1073741824" help:"Most users with rings at once; root is not counted. Default: 4096, or less where fewer files can be open."`
	Files         int      `placeholder:"N" range:"1..1073741824" help:"Most open files and directories of the mount at once; EMFILE beyond. Default: a quarter of the daemon's limit on open files."`
	Requests      int      `placeholder:"N" range:"1..1048576" help:"Most requests of the mount that are being answered at once, which may hang with the disk; EAGAIN beyond. Default: 1/16 of the daemon's limit on open files, from 256 to 4096."`
	Nodes         int      `placeholder:"N" range:"1..1073741824" help:"Number of files and directories in the kernel's cache beyond which the daemon makes it drop some. Default: what a 64th of the memory holds, at least a million."`
}

func (f *limitFlags) limits() daemon.Limits {
	return daemon.Limits{MappedBytes: int64(f.Mapped), Registrations: f.Registrations, RingUsers: f.RingUsers,
		Files: f.Files, Requests: f.Requests, Nodes: f.Nodes}
}
