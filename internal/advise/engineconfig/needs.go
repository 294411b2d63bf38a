package engineconfig

import (
	"slices"
	"strings"
)

// One function per engine returns its Need. The figures come from docs/spec/clients.md,
// 13.1 and 14.4.

const (
	mib = 1 << 20
	gib = 1 << 30

	lmcacheIovBytes = 200 * mib // LMCache's default
	lmcacheThreads  = 4
	lmcacheEntries  = 256

	vllmJobs      = 16
	vllmEntries   = 8 // not configurable
	vllmFileBytes = gib

	sglangJobs    = 16
	sglangEntries = 8

	ucmStreams       = 32
	ucmFewestBlocks  = 1024 // the Cache in front must hold at least as many
	ucmSharedCacheGB = 256  // in /dev/shm, if the ranks share the Cache, as with MLA

	rtpIovBytes    = 4 * gib // one to read, one to write
	rtpCachedFiles = 20000

	mooncakeShards     = 64
	mooncakeShardBytes = 4 * gib
	mooncakeIovBytes   = 32 * mib
	mooncakeThreads    = 16 // that do I/O; Mooncake has no setting for their number

	vllmPageService = "http://localhost:18000"
)

// lmcacheNeed returns the need of the remote connector: every I/O thread has its own
// client, and the thread that starts them has one more.
func lmcacheNeed(p Params) Need {
	clients := or(p.Clients, lmcacheThreads) + 1
	return Need{
		ShmBytesPerRank: product(int64(clients), 2, or(p.BufferBytes, lmcacheIovBytes)),
		OpenFiles:       2 * clients,
		Rings:           2 * clients, Iovs: 2 * clients,
		HashSeed: true, Rings3FS: true,
		Packages: []Package{pip("lmcache", "lmcache"), pythonClient("")},
	}
}

// lmcacheMPNeed returns the need of the L2 adapter: one server process works for all
// ranks.
func lmcacheMPNeed(p Params) Need {
	workers := or(p.Clients, lmcacheThreads)
	return Need{
		ShmBytesShared: product(int64(workers), 2, or(p.BufferBytes, lmcacheIovBytes)),
		OpenFiles:      4 * workers * or(p.Entries, lmcacheEntries),
		Rings:          2 * workers, Iovs: 2 * workers,
		HashSeed: true, Rings3FS: true,
		Packages: []Package{
			{PythonModule, "lmcache", "BUILD_HF3FS=1 HF3FS_INCLUDE_DIR=/usr/include HF3FS_LIB_DIR=/usr/lib pip install .   # in LMCache's source, with libabsl and what the library below installs", ""},
			cLibrary(),
		},
	}
}

func gdsNeed(p Params) Need {
	return Need{
		OpenFiles: 2 * or(p.Clients, 4), HashSeed: true, GDS: true,
		Packages: []Package{
			pip("lmcache", "lmcache"),
			{SharedLibrary, "libcufile.so.0", "apt install nvidia-gds   # cuFile, from NVIDIA's CUDA repository", "use_gds must be false, and the data goes through host memory"},
		},
	}
}

func vllmNeed(p Params) (Need, error) {
	page, assumed, err := p.blockBytes(VLLM)
	if err != nil {
		return Need{}, err
	}
	jobs := or(p.Clients, vllmJobs)
	const mock = "vLLM silently uses ordinary file calls instead of rings"
	return Need{
		ShmBytesPerRank: product(int64(jobs), 2, vllmEntries, page),
		OpenFiles:       2 * jobs,
		Rings:           2 * jobs, Iovs: 2 * jobs,
		DiskBytes:   or(p.FileBytes, vllmFileBytes),
		PageService: vllmPageService, Rings3FS: true, Assumed: assumed,
		Packages: []Package{
			pip("vllm", "vllm   # of April 2026 or later, with HF3FSKVConnector"), pythonClient(mock),
			{Command, "ninja", "apt install ninja-build", mock},
			{Command, "c++", "apt install g++", mock},
		},
	}, nil
}

func sglangNeed(p Params) (Need, error) {
	page, assumed, err := p.blockBytes(SGLang)
	if err != nil {
		return Need{}, err
	}
	pools := 1 + p.ExtraPools
	if p.ExtraPools > 0 {
		assumed = strings.TrimPrefix(assumed+", and ", ", and ") + "pages of extra pools that are no larger than those of the KV cache"
	}
	jobs := or(p.Clients, sglangJobs) * pools
	return Need{
		ShmBytesPerRank: product(int64(jobs), 2, int64(or(p.Entries, sglangEntries)), page),
		OpenFiles:       2 * jobs,
		Rings:           2 * jobs, Iovs: 2 * jobs,
		DiskBytes: product(p.FileBytes, int64(pools)), DiskShared: p.Model.MLA(),
		Rings3FS: true, Assumed: assumed,
		Packages: []Package{
			pip("sglang", "sglang"), pythonClient(""),
			{Command, "ninja", "apt install ninja-build", ""},
			{Command, "c++", "apt install g++", ""},
		},
	}, nil
}

// ucmNeed returns the need of Cache|Ds3fs without layerwise transfer, where one I/O is
// a block.
func ucmNeed(p Params) (Need, error) {
	block, assumed, err := p.blockBytes(UCM)
	if err != nil {
		return Need{}, err
	}
	streams := or(p.Clients, ucmStreams)
	n := Need{
		ShmBytesPerRank: product(int64(streams), block),
		OpenFiles:       2 * streams,
		Rings:           2 * streams, Iovs: streams,
		Rings3FS: true, Assumed: assumed,
		Packages: []Package{
			{PythonModule, "ucm", "pip install ./unified-cache-management   # its source, with kv3fs's header in /usr/local/3fs/src/lib/api and its library in /usr/local/3fs/src/lib/rs/hf3fs-usrbio-sys/lib; without them UCM builds, but without Ds3fs", ""},
			cLibrary(),
		},
	}
	if p.Model.MLA() {
		n.ShmBytesShared = or(p.BufferBytes, ucmSharedCacheGB*gib)
	}
	return n, nil
}

// withoutRings returns the need of an engine that stores on a 3FS through ordinary file
// calls: as on any other file system.
func (n Need) withoutRings() Need {
	n.Rings3FS, n.ShmBytesPerRank, n.Rings, n.Iovs = false, 0, 0, 0
	n.Packages = slices.DeleteFunc(slices.Clone(n.Packages), func(p Package) bool {
		return p.Name == cLibrary().Name || p.Name == pythonClient("").Name
	})
	return n
}

// kvcmNeed returns the need of RTP-LLM through Tair KVCM: a ring per operation. Its
// buffers are fixed, see rtpllm.go.
func kvcmNeed() Need {
	const operations = 8
	return Need{
		ShmBytesPerRank: 2 * rtpIovBytes,
		OpenFiles:       2 * operations,
		Rings:           operations, Iovs: 2,
		Rings3FS: true,
		Packages: []Package{cLibrary()},
	}
}

// rtpDirectNeed returns the need of RTP-LLM's own 3FS tier.
func rtpDirectNeed(readIovBytes, writeIovBytes int64) Need {
	n := kvcmNeed()
	n.ShmBytesPerRank = readIovBytes + writeIovBytes
	n.OpenFiles = 2 * rtpCachedFiles
	return n
}

func mooncakeNeed(p Params) Need {
	threads := or(p.Clients, mooncakeThreads)
	return Need{
		ShmBytesPerRank: product(int64(threads), mooncakeIovBytes),
		OpenFiles:       2 * or(p.Entries, mooncakeShards),
		Rings:           2 * threads, Iovs: threads,
		DiskBytes:    product(int64(or(p.Entries, mooncakeShards)), or(p.FileBytes, mooncakeShardBytes)),
		DiskReserved: true, DiskFiles: mooncakeShardPattern,
		Rings3FS: true,
		Assumed:  "16 client threads that do I/O; Mooncake makes a buffer for each",
		Packages: []Package{{Command, "mooncake_master", "cmake -B build -DUSE_3FS=ON && cmake --build build && cmake --install build   # in Mooncake's source, after what the library below installs", ""}, cLibrary()},
	}
}

// nixlNeed returns a need without sizes: the application registers the memory.
func nixlNeed() Need {
	return Need{
		Rings3FS: true,
		Assumed:  "no application; add what yours registers or has in flight in /dev/shm, and a ring for each request",
		Packages: []Package{pip("nixl", "nixl   # and libplugin_HF3FS.so, built from its source, into NIXL's plugin directory"), cLibrary()},
	}
}
