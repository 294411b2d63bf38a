package doctor

import "context"

// checkGDS checks what cuFile needs besides its library, which checkPackages checks.
func checkGDS(ctx context.Context, o *Options) []Finding {
	h := o.Host
	driver := ok("gds.driver", "nvidia-fs is loaded")
	if !h.ModuleLoaded("nvidia_fs") {
		driver = Finding{ID: "gds.driver", Status: Warning, Found: "the kernel module nvidia-fs is not loaded",
			Needed: "nvidia-fs, for transfers between disk and GPU; without it cuFile copies through main memory",
			Fix:    "modprobe nvidia-fs   # from the package nvidia-gds; see also its gdscheck -p"}
	}
	const file = "/etc/cufile.json"
	path := file
	if v, set := h.LookupEnv("CUFILE_ENV_PATH_JSON"); set && v != "" {
		path = v
	}
	config := ok("gds.config", "%s", path)
	there, err := runProbe[bool](ctx, o, mountTimeout, "exists", h.Path(path))
	switch {
	case err != nil:
		config = unknown("gds.config", "whether there is "+path, err)
	case !there:
		config = Finding{ID: "gds.config", Status: Note, Found: "there is no " + path,
			Needed: "nothing: cuFile uses its defaults; with allow_compat_mode: true in that file it works without nvidia-fs"}
	}
	return []Finding{driver, config}
}
