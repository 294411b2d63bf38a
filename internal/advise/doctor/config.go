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

// mostConfigBytes is what engineconfig.Read takes; no configuration is as large.
const mostConfigBytes = 64 << 10

// fileFacts are a file's contents.
type fileFacts struct {
	Trouble   trouble     `json:"trouble"`
	Mode      fs.FileMode `json:"mode"`
	SizeBytes int64       `json:"size_bytes"`
	Content   []byte      `json:"content"` // of a regular file that is not too large
}

// probeFile does not open what is no regular file: that may wait for a writer.
func probeFile(path string) (f fileFacts) {
	info, err := os.Stat(path)
	if err == nil {
		f.Mode, f.SizeBytes = info.Mode(), info.Size()
		if f.Mode.IsRegular() && f.SizeBytes <= mostConfigBytes {
			f.Content, err = os.ReadFile(path)
		}
	}
	f.Trouble = troubleOf(err)
	return f
}

// readConfig reads the engine's configuration, and reports what is wrong in it.
func (e *engine) readConfig(ctx context.Context, o *Options) {
	const id = "config"
	file, err := ask[fileFacts](ctx, o, mountPatience, "file", o.ConfigFile)
	if f := judgeFile(o.ConfigFile, file, err); f.Status > OK {
		e.findings = append(e.findings, f)
		return
	}
	config, err := engineconfig.Read(o.Engine, o.ConfigFile, file.Content, o.Params, o.Host.LookupEnv)
	if err != nil {
		e.findings = append(e.findings, Finding{ID: id, Status: Failure, Found: err.Error(), Needed: "a file that " + o.Engine + " can read", Fix: "kv3fs engine-config " + o.Engine})
		return
	}
	e.config = config
	for _, p := range config.Problems {
		e.findings = append(e.findings, findingOf(p))
	}
	if len(config.Problems) == 0 {
		e.findings = append(e.findings, ok(id, "%s: every key is known and in range", o.ConfigFile))
	}
}

// judgeFile says why a configuration could not be read.
func judgeFile(name string, file fileFacts, err error) Finding {
	f := Finding{ID: "config", Status: Failure, Needed: "the engine's configuration: a file of at most " + bytesText(mostConfigBytes)}
	switch {
	case errors.Is(err, errHung):
		f.Found = name + " does not answer: the disk or mount that it is on hangs"
		f.Needed = "a place that answers; a configuration had better not be on the mount that it is for"
	case err != nil:
		f.Found = fmt.Sprintf("%s: %v", name, err)
	case file.Trouble.is(syscall.ENOENT):
		f.Found = "there is no " + name
		f.Fix = "kv3fs engine-config --help   # writes one"
	case file.Trouble.is(syscall.EACCES):
		f.Found = fmt.Sprintf("this user may not read %s", name)
		f.Fix = "chmod a+r " + quote(name) + "   # or run the doctor as the engine's user"
	case file.Trouble.any():
		f.Found = file.Trouble.Text
	case file.Mode.IsDir():
		f.Found = name + " is a directory"
		f.Needed = "a file in it"
	case !file.Mode.IsRegular():
		f.Found = fmt.Sprintf("%s is no regular file (%v)", name, file.Mode)
		f.Fix = "cat " + quote(name) + " > FILE   # and name that one"
	case file.SizeBytes > mostConfigBytes:
		f.Found = fmt.Sprintf("%s has %s, more than %s", name, bytesUnlike(file.SizeBytes, mostConfigBytes), bytesText(mostConfigBytes))
	default:
		return Finding{}
	}
	return f
}

func findingOf(p engineconfig.Problem) Finding {
	f := Finding{ID: "config", Status: Note, Found: p.What, Fix: p.Cure}
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

// checkConfig compares a configuration with the disk.
func checkConfig(ctx context.Context, o *Options, c *engineconfig.Config, point string) (all []Finding) {
	if c.Mount != "" && point != "" && c.Mount != point {
		f := Finding{ID: "config.mount", Status: Failure, Found: fmt.Sprintf("the configuration says %s, the mount is %s", c.Mount, point),
			Needed: "the same bytes: no trailing slash, no symbolic link", Fix: "write " + point + " as the mount point"}
		if engineconfig.FixedMount(c.Engine) != "" {
			f.Found = fmt.Sprintf("%s looks for %s, unless told otherwise in a way that works; the mount is %s", c.Engine, c.Mount, point)
			f.Fix = "kv3fs serve --data DIR --mount " + quote(c.Mount)
		}
		all = append(all, f)
	}
	if len(c.BasePaths) == 0 || point == "" && c.Need.Rings3FS { // at a dead mount all are missing, which says nothing new
		return all
	}
	facts, err := ask[[]pathFacts](ctx, o, mountPatience, append([]string{"paths"}, c.BasePaths...)...)
	if err != nil {
		return append(all, unknown("config.path", "whether the base paths exist", err))
	}
	for _, f := range facts {
		all = append(all, judgePath(f, c, point))
	}
	return all
}

// pathFacts are about a directory an engine wants to store in.
type pathFacts struct {
	Path      string  `json:"path"`
	Canonical string  `json:"canonical"` // of Path, or of Parent where it is missing
	Parent    string  `json:"parent"`    // the nearest that exists; Path itself if it does
	Write     trouble `json:"write"`     // of making a file in Parent
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
		f.Write = troubleOf(tryWriting(f.Parent))
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

func judgePath(f pathFacts, c *engineconfig.Config, point string) Finding {
	const id = "config.path"
	missing := f.Parent != f.Path
	outside := c.Need.Rings3FS && (f.Canonical == "" || !host.Within(f.Canonical, point))
	switch {
	case outside:
		return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("%s is not on the mount %s", f.Path, point),
			Needed: "directories below the mount point", Fix: "mkdir -p " + quote(filepath.Join(point, filepath.Base(f.Path))) + "   # and name that one"}
	case missing && !c.MakesPaths:
		return Finding{ID: id, Status: Failure, Found: f.Path + " does not exist", Needed: "a directory that is there: " + c.Engine + " does not make it", Fix: "mkdir -p " + quote(f.Path)}
	case f.Write.is(syscall.ENOTDIR):
		return Finding{ID: id, Status: Failure, Found: f.Path + " is no directory", Needed: "one"}
	case f.Write.is(syscall.EACCES, syscall.EPERM):
		return Finding{ID: id, Status: Failure, Found: fmt.Sprintf("this user may not write in %s", f.Parent),
			Needed: "a directory of the user that the engine runs as (run the doctor as that one)", Fix: "chown USER " + quote(f.Parent)}
	case f.Write.any():
		return Finding{ID: id, Status: Failure, Found: f.Write.Text, Needed: "a directory that can be written in"}
	case missing:
		return ok(id, "%s will be made by %s", f.Path, c.Engine)
	}
	return ok(id, "%s can be written in", f.Path)
}
