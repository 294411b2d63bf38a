package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/host"
)

// maxConfigBytes is the limit of engineconfig.Read, far above any configuration.
const maxConfigBytes = 64 << 10

// fileFacts is what probeFile finds: a file's type, size and content.
type fileFacts struct {
	Err       probeError
	Mode      fs.FileMode
	SizeBytes int64
	Content   []byte // only for a regular file of at most maxConfigBytes
}

// probeFile reads a regular file. It opens nothing else: opening a pipe would wait for a
// writer.
func probeFile(path string) (f fileFacts) {
	info, err := os.Stat(path)
	if err == nil {
		f.Mode, f.SizeBytes = info.Mode(), info.Size()
		if f.Mode.IsRegular() && f.SizeBytes <= maxConfigBytes {
			f.Content, err = os.ReadFile(path)
		}
	}
	f.Err = probeErrorOf(err)
	return f
}

// readConfig reads the engine's configuration and reports what is wrong with it.
func (e *engine) readConfig(ctx context.Context, o *Options) {
	file, err := runProbe[fileFacts](ctx, o, mountTimeout, "file", o.ConfigFile)
	if f := judgeFile(o.ConfigFile, file, err); f.Status > OK {
		e.findings = append(e.findings, f)
		return
	}
	e.interpret(o, o.ConfigFile, file.Content)
}

// readEnvironment reads a configuration that consists of variables.
func (e *engine) readEnvironment(o *Options) {
	e.findings = append(e.findings, ok("config.env", "no file is given: %s is configured by variables of this environment", o.Engine))
	e.interpret(o, "the environment", nil)
}

// checkNames reports variables of the environment that look like an engine's but are not.
func (e *engine) checkNames(o *Options) {
	if o.Host.EnvNames == nil {
		return
	}
	for _, p := range engineconfig.Misnamed(o.Engine, o.Host.EnvNames()) {
		f := findingOf(p)
		f.ID = "config.env"
		e.findings = append(e.findings, f)
	}
}

// interpret checks a configuration, whose name is for messages.
func (e *engine) interpret(o *Options, name string, content []byte) {
	const id = "config"
	config, err := engineconfig.Read(o.Engine, name, content, o.Params, o.Host.LookupEnv)
	if err != nil {
		e.findings = append(e.findings, Finding{ID: id, Status: Failure, Found: err.Error(), Needed: "a file that " + o.Engine + " can read", Fix: "kv3fs engine-config " + o.Engine})
		return
	}
	e.config = config
	for _, p := range config.Problems {
		e.findings = append(e.findings, findingOf(p))
	}
	if len(config.Problems) == 0 {
		e.findings = append(e.findings, ok(id, "%s: every key is known and in range", name))
	}
}

// judgeFile says why a configuration could not be read. It returns the zero Finding
// for a file that was read.
func judgeFile(name string, file fileFacts, err error) Finding {
	f := Finding{ID: "config", Status: Failure, Needed: "the engine's configuration: a file of at most " + bytesText(maxConfigBytes)}
	switch {
	case errors.Is(err, errNoAnswer):
		f.Found = name + " does not answer: its disk or mount hangs"
		f.Needed = "a file on a disk that answers; do not keep an engine's configuration on the mount that it describes"
	case err != nil:
		f.Found = fmt.Sprintf("%s: %v", name, err)
	case file.Err.is(syscall.ENOENT):
		f.Found = "there is no " + name
		f.Fix = "kv3fs engine-config --help   # writes one"
	case file.Err.is(syscall.EACCES):
		f.Found = "this user may not read " + name
		f.Fix = "chmod a+r " + quote(name) + "   # or run the doctor as the engine's user"
	case file.Err.failed():
		f.Found = file.Err.Text
	case file.Mode.IsDir():
		f.Found = name + " is a directory"
		f.Needed = "a file in it"
	case !file.Mode.IsRegular():
		f.Found = fmt.Sprintf("%s is not a regular file (%v)", name, file.Mode)
		f.Fix = "cat " + quote(name) + " > FILE   # and name that one"
	case file.SizeBytes > maxConfigBytes:
		f.Found = fmt.Sprintf("%s has %s, more than %s", name, bytesDistinct(file.SizeBytes, maxConfigBytes), bytesText(maxConfigBytes))
	default:
		return Finding{}
	}
	return f
}

func findingOf(p engineconfig.Problem) Finding {
	f := Finding{ID: "config", Status: Note, Found: p.What, Fix: p.Fix}
	if p.Key != "" {
		f.Found = p.Key + ": " + p.What
	}
	switch p.Severity {
	case engineconfig.Warning:
		f.Status = Warning
	case engineconfig.Failure:
		f.Status = Failure
	}
	return f
}

// checkConfig compares a configuration with the mount and the existing directories.
func checkConfig(ctx context.Context, o *Options, c *engineconfig.Config, point string) (all []Finding) {
	if c.Mount != "" && point != "" && c.Mount != point {
		f := Finding{ID: "config.mount", Status: Failure, Found: fmt.Sprintf("the configuration says %s, but the mount is %s", c.Mount, point),
			Needed: "exactly the same path: no trailing slash, no symbolic link", Fix: "write " + point + " as the mount point"}
		if engineconfig.FixedMount(c.Engine) != "" {
			f.Found = fmt.Sprintf("%s looks for %s, and no setting changes that; but the mount is %s", c.Engine, c.Mount, point)
			f.Fix = bindAt(point, c.Mount)
		}
		all = append(all, f)
	}
	if len(c.BasePaths) == 0 || point == "" && c.Need.Rings3FS { // without a mount, all paths are missing anyway
		return all
	}
	facts, err := runProbe[[]pathFacts](ctx, o, mountTimeout, append([]string{"paths"}, c.BasePaths...)...)
	if err != nil {
		return append(all, unknown("config.path", "whether the base paths exist", err))
	}
	for _, f := range facts {
		all = append(all, judgePath(f, c, point, o.Host.EUID))
	}
	return all
}

// pathFacts describes a directory that an engine wants to store in.
type pathFacts struct {
	Path      string
	Canonical string     // of Path, or of Parent if Path is missing; without symbolic links
	Parent    string     // Path if it exists, else its nearest parent that does
	Write     probeError // from creating a file in Parent
}

func probePaths(paths []string) []pathFacts {
	all := []pathFacts{}
	for _, path := range paths {
		f := pathFacts{Path: path, Parent: path}
		for {
			_, err := os.Stat(f.Parent)
			if !errors.Is(err, fs.ErrNotExist) || f.Parent == filepath.Dir(f.Parent) {
				break
			}
			f.Parent = filepath.Dir(f.Parent)
		}
		f.Canonical, _ = filepath.EvalSymlinks(f.Parent)
		f.Write = probeErrorOf(tryWriting(f.Parent))
		all = append(all, f)
	}
	return all
}

func tryWriting(dir string) error {
	name := filepath.Join(dir, ".kv3fs-doctor-"+strconv.Itoa(os.Getpid()))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(name))
}

// ontoMount returns the line that lets an engine store on the mount at point instead of in a
// path that is not on it.
func ontoMount(f pathFacts, c *engineconfig.Config, point string) string {
	switch {
	case engineconfig.FixedMount(c.Engine) != "":
		return bindAt(point, c.Mount)
	case f.Path == c.Mount: // it stores directly below the mount point
		return "write " + point + " as the mount point"
	}
	return "mkdir -p " + quote(filepath.Join(point, filepath.Base(f.Path))) + "   # and name that one"
}

func judgePath(f pathFacts, c *engineconfig.Config, point string, euid int) Finding {
	const id = "config.path"
	missing := f.Parent != f.Path
	outside := c.Need.Rings3FS && (f.Canonical == "" || !host.Within(f.Canonical, point))
	switch {
	case outside:
		return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("%s is not on the mount %s", f.Path, point), Needed: "a directory below the mount point", Fix: ontoMount(f, c, point)}
	case missing && !c.MakesPaths:
		return Finding{ID: id, Status: Failure, Found: f.Path + " does not exist", Needed: "an existing directory: " + c.Engine + " does not create it", Fix: "mkdir -p " + quote(f.Path)}
	case f.Write.is(syscall.ENOTDIR):
		return Finding{ID: id, Status: Failure, Found: f.Path + " is not a directory", Needed: "a directory"}
	case f.Write.is(syscall.EACCES, syscall.EPERM) && euid == 0:
		return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("not even root may write in %s", f.Parent),
			Needed: "a directory that is not immutable (lsattr -d), and no security module that forbids it"}
	case f.Write.is(syscall.EACCES, syscall.EPERM):
		fix := fmt.Sprintf("chown %d %s   # as root", euid, quote(f.Path))
		if missing {
			fix = fmt.Sprintf("install -d -o %d %s   # as root", euid, quote(f.Path))
		}
		return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("this user may not write in %s", f.Parent),
			Needed: "a directory that the engine's user may write in (run the doctor as that user)", Fix: fix}
	case f.Write.failed():
		return Finding{ID: id, Status: Failure, Found: f.Write.Text, Needed: "a writable directory"}
	case missing:
		return ok(id, "%s will be created by %s", f.Path, c.Engine)
	}
	return ok(id, "%s is writable", f.Path)
}
