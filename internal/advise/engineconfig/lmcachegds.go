package engineconfig

import (
	"fmt"
	"path"
)

// readGDS reads LMCache's settings with its GDS backend.
func readGDS(out *Config, content []byte, _ Params, env func(string) (string, bool)) error {
	top, extra, err := lmcacheSettings(out, content, env)
	if err != nil {
		return err
	}
	out.MakesPaths = true
	lmcacheGenericKeys(top)

	list := top.words("gds_path")
	if len(list) == 0 {
		top.problem(Failure, "gds_path", "names no directory", "write one or more directories, separated by commas")
	}
	for _, p := range list {
		checkBase(top, "gds_path", p, "")
		out.BasePaths = append(out.BasePaths, path.Clean(p))
	}
	top.choice("gds_path_sharding", "by_gpu")
	top.choice("gds_backend", "cufile", "hipfile")
	bufferMiB := readGDSBuffer(top)
	gds := top.lmcacheFlag("use_gds", true)
	out.GDSAsked = gds && top.has("use_gds")
	if _, set := extra.values["use_cufile"]; set {
		old := extra.lmcacheFlag("use_cufile", true)
		extra.problem(Note, "use_cufile", "is the older name of use_gds", fmt.Sprintf("write use_gds: %v at the top level", old))
		out.GDSAsked = out.GDSAsked || gds && old
		gds = gds && old
	}
	extra.lmcacheFlag("use_direct_io", false)
	threads := extra.lmcacheNumber("disk_io_threads", 4)
	threads = extra.lmcacheNumber("gds_io_threads", threads)
	extra.lmcacheCheck("max_alloc_attempts")
	extra.lmcacheCheck("allocation_attempt_delay_secs")
	none := func(string) bool { return false }
	extra.unknown(none)
	top.unknown(none)

	out.Need = gdsNeed(Params{Clients: int(threads)})
	out.Need.HashSeed = seedNeeded(top)
	out.Need.GPUBufferBytes = product(bufferMiB, mib)
	if !gds {
		out.Need.GDS = false
		out.Need.Packages = out.Need.Packages[:1]
	}
	return nil
}

// readGDSBuffer returns the size in MiB of the GPU memory that LMCache registers, by the key's
// name of today or the older one. There is no default.
func readGDSBuffer(top *mapping) int64 {
	const now, older = "gds_buffer_size", "cufile_buffer_size"
	hasNow, hasOlder := top.has(now), top.has(older)
	before := top.lmcacheNumber(older, 0)
	size := top.lmcacheNumber(now, 0)
	switch {
	case !hasNow && !hasOlder:
		top.problem(Failure, now, "is missing; LMCache does not start without it", "write how many MiB of each GPU's memory to register, such as 8192")
	case !hasNow:
		top.problem(Note, older, "is the older name of "+now+"; newer versions do not read it, and do not start without "+now, "write "+now)
		return before
	case hasOlder && before != size:
		top.problem(Warning, older, fmt.Sprintf("is %d, but %s, which newer versions read, is %d", before, now, size), "write the same in both, or only "+now)
	}
	return size
}
