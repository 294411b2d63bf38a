package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
)

// checkPackages looks for what an engine must find installed, for all at once:
// importing an engine takes Python seconds.
func checkPackages(ctx context.Context, o *Options, packages []engineconfig.Package) []Finding {
	all := make([]Finding, len(packages))
	var group sync.WaitGroup
	for i, p := range packages {
		group.Go(func() {
			what, patience := "command", mountPatience
			switch p.Kind {
			case engineconfig.PythonModule:
				what, patience = "module", commandPatience
			case engineconfig.SharedLibrary:
				what, patience = "library", commandPatience
			}
			where, err := find(ctx, o, patience, what, p.Name)
			all[i] = judgePackage(p, where, err)
		})
	}
	group.Wait()
	return all
}

// find asks a probe where something is installed; exec.ErrNotFound says that it
// is not. PATH and its like may lead to a mount that hangs.
func find(ctx context.Context, o *Options, patience time.Duration, what, name string) (string, error) {
	where, err := ask[string](ctx, o, patience, what, name)
	if err == nil && where == "" {
		err = exec.ErrNotFound
	}
	return where, err
}

// probeCommand is where a program is in PATH, "" if nowhere.
func probeCommand(name string) (string, error) {
	where, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return "", nil
	}
	return where, err
}

func judgePackage(p engineconfig.Package, where string, err error) Finding {
	id := "package." + p.Name
	switch {
	case err == nil:
		return ok(id, "%s", where)
	case errors.Is(err, errHung):
		return unknown(id, "whether it is installed", fmt.Errorf("%w: what PATH, PYTHONPATH or LD_LIBRARY_PATH lead to hangs, or takes long", err))
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

// probeModule imports a module into the python3 of this environment, which takes
// the place of this process and answers for it: "" where there is no module.
// What modules print of their own accord goes elsewhere.
func probeModule(name string) (string, error) {
	const script = `import importlib, importlib.util, json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
name, found = sys.argv[1], ""
if importlib.util.find_spec(name.split(".")[0]) is not None:
    m = importlib.import_module(name)
    version = getattr(m, "__version__", "")
    if not version:
        try:
            from importlib.metadata import packages_distributions, version as of
            version = of(packages_distributions()[name.split(".")[0]][0])
        except Exception: version = "unknown version"
    found = f"{version} {getattr(m, '__file__', None) or 'built in'}"
json.dump(found, answer)`
	python, err := probeCommand("python3")
	if err != nil || python == "" {
		return "", err
	}
	return "", syscall.Exec(python, []string{"python3", "-c", script, name}, os.Environ())
}

// probeLibrary looks for a shared library as the dynamic linker does: in
// LD_LIBRARY_PATH, and in its cache.
func probeLibrary(name string) string {
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		if path := filepath.Join(dir, name); exists(path) {
			return path
		}
	}
	return cacheEntry(ldCache(), name)
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
