package doctor

import "context"

// checkGDS looks for what cuFile needs besides its library, which is among the
// engine's packages.
func checkGDS(ctx context.Context, o *Options) []Finding {
	h := o.Host
	driver := ok("gds.driver", "nvidia-fs is loaded")
	if !h.ModuleLoaded("nvidia_fs") {
		driver = Finding{ID: "gds.driver", Status: Warning, Found: "the kernel module nvidia-fs is not loaded",
			Needed: "it, for transfers between disk and GPU; without it cuFile copies through main memory",
			Fix:    "modprobe nvidia-fs   # of the package nvidia-gds; its gdscheck -p says more"}
	}
	const file = "/etc/cufile.json"
	path := file
	if v, set := h.LookupEnv("CUFILE_ENV_PATH_JSON"); set && v != "" {
		path = v
	}
	config := ok("gds.config", "%s", path)
	there, err := ask[bool](ctx, o, mountPatience, "exists", h.Path(path))
	switch {
	case err != nil:
		config = unknown("gds.config", "whether there is "+path, err)
	case !there:
		config = Finding{ID: "gds.config", Status: Note, Found: "there is no " + path,
			Needed: "nothing: cuFile takes its defaults; allow_compat_mode: true there lets it work without nvidia-fs"}
	}
	return []Finding{driver, config}
}
