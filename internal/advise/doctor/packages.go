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

// checkPackages checks that an engine's packages are installed. It checks them in
// parallel, because Python takes seconds to import an engine.
func checkPackages(ctx context.Context, o *Options, packages []engineconfig.Package) []Finding {
	all := make([]Finding, len(packages))
	var group sync.WaitGroup
	for i, p := range packages {
		group.Go(func() {
			what, timeout := "command", mountTimeout
			switch p.Kind {
			case engineconfig.PythonModule:
				what, timeout = "module", commandTimeout
			case engineconfig.SharedLibrary:
				what, timeout = "library", commandTimeout
			}
			where, err := find(ctx, o, timeout, what, p.Name)
			all[i] = judgePackage(p, where, err)
		})
	}
	group.Wait()
	return all
}

// find returns where something is installed, or exec.ErrNotFound. It uses a probe,
// because PATH and similar variables may lead to a mount that hangs.
func find(ctx context.Context, o *Options, timeout time.Duration, what, name string) (string, error) {
	where, err := "", error(nil)
	if what == "module" { // Python answers, in plain text
		var text []byte
		text, err = output(ctx, timeout, append(o.Probe[:len(o.Probe):len(o.Probe)], what, name)...)
		where = string(text)
	} else {
		where, err = runProbe[string](ctx, o, timeout, what, name)
	}
	if err == nil && where == "" {
		err = exec.ErrNotFound
	}
	return where, err
}

// probeCommand returns the path of a program in PATH, "" if there is none.
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
	case errors.Is(err, errNoAnswer):
		return unknown(id, "whether it is installed", fmt.Errorf("%w: a directory in PATH, PYTHONPATH or LD_LIBRARY_PATH hangs or is slow", err))
	}
	f := Finding{ID: id, Status: Failure, Found: "not found", Needed: "without it, the engine does not start", Fix: p.Install}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		f.Found = fmt.Sprintf("found, but does not work: %v", err)
	}
	if p.Optional != "" {
		f.Status, f.Needed = Warning, "without it, "+p.Optional
	}
	return f
}

// probeModule replaces this process with the environment's python3, which imports a
// module and writes where it is as text, nothing if there is no such module. The module's own
// output goes to standard error.
func probeModule(name string) error {
	const script = `import importlib, importlib.util, os, sys
answer = os.fdopen(os.dup(1), "wb")
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
answer.write(os.fsencode(found))`
	python, err := probeCommand("python3")
	if err != nil || python == "" {
		return err
	}
	return syscall.Exec(python, []string{"python3", "-c", script, name}, os.Environ())
}

// probeLibrary looks for a shared library as the dynamic linker does: in
// LD_LIBRARY_PATH, then in the linker's cache.
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

// cacheEntry finds a library in the output of ldconfig -p, by its name or by its name
// followed by a version.
func cacheEntry(cache, name string) string {
	for line := range strings.Lines(cache) {
		entry, path, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if soname, _, _ := strings.Cut(entry, " "); ok && (soname == name || strings.HasPrefix(soname, name+".")) {
			return path
		}
	}
	return ""
}
