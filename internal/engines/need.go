package engines

import (
	"fmt"

	"github.com/kv3fs/kv3fs/internal/model"
)

// Need is what an engine asks of a host.
type Need struct {
	ShmBytesPerRank int64  // that one rank creates in /dev/shm
	ShmBytesShared  int64  // beyond that, once a host, however many ranks
	OpenFiles       int    // descriptors one rank keeps open for storage; a registered file takes two
	Rings, Iovs     int    // that one rank has registered at once
	PageService     string // URL that it will contact, "" if none
	HashSeed        bool   // PYTHONHASHSEED must be set, and equal in every process that shares files
	GDS             bool   // cuFile is wanted
	Rings3FS        bool   // needs a fuse.hf3fs mount; false: any file system will do
	Packages        []Package
	Assumed         string // what the numbers take for granted because the configuration does not say; "" if nothing
}

// PackageKind says how to look for a package.
type PackageKind int

// Kinds of packages.
const (
	PythonModule  PackageKind = iota // importable: python3 -c "import NAME"
	SharedLibrary                    // found by the dynamic linker: NAME is the file name
	Command                          // found in PATH
)

// Package is something that must be installed.
type Package struct {
	Kind     PackageKind
	Name     string // module, library file or command
	Install  string // how to get it
	Optional string // what happens without it; "" when the engine does not work without it
}

// Params describe a deployment. A zero field stands for the engine's default.
type Params struct {
	Model       model.Shape // zero: a model of the 8B class, and Need.Assumed says so
	TP          int         // tensor-parallel ranks; zero is 1
	BlockTokens int         // tokens of a chunk, page or block
	Clients     int         // threads, jobs or streams, whichever the engine calls what has rings of its own
	Entries     int         // of a ring
	BufferBytes int64       // of one buffer, where the engine lets one choose: LMCache's and RTP-LLM's iov
}

// NeedOf says what an engine asks of a host. The engine must be one of Names.
func NeedOf(engine string, p Params) (Need, error) {
	if err := known(engine); err != nil {
		return Need{}, err
	}
	return Need{}, fmt.Errorf("engines: the need of %s comes with the next commit", engine)
}
