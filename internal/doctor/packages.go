package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kv3fs/kv3fs/internal/engines"
)

// checkPackages looks for what an engine must find installed.
func checkPackages(ctx context.Context, o *Options, packages []engines.Package) (all []Finding) {
	var libraries []string
	for _, p := range packages {
		if p.Kind == engines.SharedLibrary {
			libraries = append(libraries, p.Name)
		}
	}
	var places map[string]string
	var librariesErr error
	if len(libraries) > 0 {
		places, librariesErr = ask[map[string]string](ctx, o, commandPatience, append([]string{"libraries"}, libraries...)...)
	}
	for _, p := range packages {
		if p.Kind == engines.SharedLibrary && librariesErr != nil {
			all = append(all, unknown("package."+p.Name, "whether it is installed", librariesErr))
			continue
		}
		var where string
		var err error
		switch p.Kind {
		case engines.PythonModule:
			where, err = findModule(ctx, p.Name)
		case engines.Command:
			where, err = exec.LookPath(p.Name)
		case engines.SharedLibrary:
			if where = places[p.Name]; where == "" {
				err = exec.ErrNotFound
			}
		}
		all = append(all, judgePackage(p, where, err))
	}
	return all
}

func judgePackage(p engines.Package, where string, err error) Finding {
	id := "package." + p.Name
	switch {
	case err == nil:
		return ok(id, "%s", where)
	case errors.Is(err, errHung):
		return unknown(id, "whether it is installed", err)
	}
	f := Finding{ID: id, Status: Failure, Found: "not found", Needed: "the engine does not start without it", Fix: p.Install}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		f.Found = fmt.Sprintf("found, and does not work: %v", err)
	}
	if p.Optional != "" {
		f.Status, f.Needed = Warning, p.Optional
	}
	return f
}

// findModule imports a module into the python3 of this environment, in a process
// of its own.
func findModule(ctx context.Context, name string) (string, error) {
	const script = `import importlib, importlib.util, sys
name = sys.argv[1]
if importlib.util.find_spec(name.split(".")[0]) is None: print("absent"); sys.exit()
m = importlib.import_module(name)
version = getattr(m, "__version__", "")
if not version:
    try:
        from importlib.metadata import packages_distributions, version as of
        version = of(packages_distributions()[name.split(".")[0]][0])
    except Exception: version = "unknown version"
print(version, getattr(m, "__file__", None) or "built in")`
	text, err := output(ctx, commandPatience, "python3", "-c", script, name)
	found := lastLine(string(text))
	if err == nil && found == "absent" {
		err = exec.ErrNotFound
	}
	return found, err
}

// probeLibraries looks for shared libraries as the dynamic linker does: in
// LD_LIBRARY_PATH, whose directories may be on anything, and in its cache.
func probeLibraries(names []string) map[string]string {
	found := map[string]string{}
	for _, name := range names {
		for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err == nil && found[name] == "" {
				found[name] = path
			}
		}
	}
	cache := ldCache()
	for _, name := range names {
		if found[name] == "" {
			found[name] = cacheEntry(cache, name)
		}
	}
	return found
}

func ldCache() string {
	for _, ldconfig := range []string{"ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"} {
		if text, err := exec.Command(ldconfig, "-p").Output(); err == nil {
			return string(text)
		}
	}
	return ""
}

// cacheEntry finds a library in what ldconfig -p prints, by its name or, where
// that has no version, by its name with one.
func cacheEntry(cache, name string) string {
	for line := range strings.Lines(cache) {
		entry, path, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if soname, _, _ := strings.Cut(entry, " "); ok && (soname == name || strings.HasPrefix(soname, name+".")) {
			return path
		}
	}
	return ""
}
