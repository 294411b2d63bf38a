package engineconfig

import (
	"fmt"
	"math"
	"path"
)

// readGDS reads the YAML of LMCache with its GDS backend.
func readGDS(out *Config, content []byte, _ Params, env func(string) (string, bool)) error {
	values, err := decodeYAML(content)
	if err != nil {
		return err
	}
	top := newMapping(values, "", out)
	extra, err := lmcacheExtra(top, env)
	if err != nil {
		return err
	}
	out.MakesPaths = true
	lmcacheGenericKeys(top)

	list := top.words("gds_path")
	if text, ok := env("LMCACHE_GDS_PATH"); ok && len(list) == 0 {
		list = splitList(text)
	}
	if len(list) == 0 {
		top.problem(Failure, "gds_path", "names no directory", "write one or more directories, separated by commas")
	}
	for _, p := range list {
		checkBase(top, "gds_path", p, "")
		out.BasePaths = append(out.BasePaths, path.Clean(p))
	}
	top.choice("gds_path_sharding", "by_gpu")
	top.choice("gds_backend", "cufile", "hipfile")
	top.number("gds_buffer_size", bounds{min: 1, max: math.MaxInt32}) // MiB
	top.ignored(Note, "cufile_buffer_size", "is the older name of gds_buffer_size", "write gds_buffer_size")
	gds := top.flag("use_gds", true)
	if v, ok := extra.get("use_cufile"); ok {
		extra.problem(Note, "use_cufile", "is the older name of use_gds", fmt.Sprintf("write use_gds: %v at the top level", v))
		gds = gds && v != false
	}
	extra.flag("use_direct_io", false)
	threads := extra.number("disk_io_threads", bounds{fallback: 4, min: 1, max: 1024})
	threads = extra.number("gds_io_threads", bounds{fallback: threads, min: 1, max: 1024})
	extra.number("max_alloc_attempts", bounds{fallback: 10, min: 1, max: math.MaxInt32})
	extra.has("allocation_attempt_delay_secs")
	none := func(string) bool { return false }
	extra.unknown(none)
	top.unknown(none)

	out.Need = gdsNeed(Params{Clients: int(threads)})
	out.Need.HashSeed = seedNeeded(top)
	if !gds {
		out.Need.GDS = false
		out.Need.Packages = out.Need.Packages[:1]
	}
	return nil
}
