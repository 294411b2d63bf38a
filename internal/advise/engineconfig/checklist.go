package engineconfig

import (
	"fmt"
	"strings"
)

// checkList lists what the host must have before the engine starts. It consists of
// comment lines so that the whole output can be pasted into a shell.
func checkList(p *plan) string {
	var b strings.Builder
	item := func(what, how string) {
		fmt.Fprintf(&b, "# [ ] %s\n", what)
		if how != "" {
			fmt.Fprintf(&b, "#       %s\n", how)
		}
	}
	for _, pkg := range p.Need.Packages {
		item(pkg.look(), pkg.Install)
		if pkg.Optional != "" {
			fmt.Fprintf(&b, "#       without it: %s\n", pkg.Optional)
		}
	}
	if p.Need.Rings3FS {
		item("a 3FS at "+p.seenAt()+": grep fuse.hf3fs /proc/self/mountinfo", "kv3fs serve --data DIR --mount "+shellText(p.seenAt()))
	}
	if total := p.Need.ShmBytes(p.TP); total > 0 {
		what := fmt.Sprintf("more than %s free in /dev/shm%s: df -h /dev/shm", size(total), p.forRanks())
		how := fmt.Sprintf("mount -o remount,size=%d /dev/shm   # if it has less; in a container: --shm-size=%[1]d", p.shmSize(total))
		if p.shmKnown() && p.shmFits(total) {
			how = ""
		}
		item(what, how)
	}
	if p.Need.OpenFiles > 0 {
		item(fmt.Sprintf("%d open files per rank for storage, besides the engine's own: ulimit -Hn", p.Need.OpenFiles), "LimitNOFILE= in a systemd unit, --ulimit nofile= for a container")
	}
	if url := p.pageService(); url != "" {
		item("a page service at "+url, "kv3fs serve runs it on port 18000; alone: kv3fs pages serve --data DIR")
	}
	if p.Need.HashSeed {
		item("the same PYTHONHASHSEED in every process that shares these files", "otherwise nothing is found after a restart")
	}
	if p.Need.Assumed != "" {
		fmt.Fprintf(&b, "# The sizes assume %s.\n", p.Need.Assumed)
	}
	return b.String()
}

// pageService returns the URL that the engine will use with this configuration.
func (p *plan) pageService() string {
	if p.Engine == SGLang {
		return p.PageService
	}
	return p.Need.PageService
}

// seenAt returns the path at which the engine looks for the mount.
func (p *plan) seenAt() string {
	if p.Engine == RTPLLM {
		return rtpMount
	}
	return p.Mount
}

// look returns a package's name with a command that looks for it.
func (p Package) look() string {
	switch p.Kind {
	case PythonModule:
		return fmt.Sprintf("Python module %s: python3 -c 'import %s'", p.Name, p.Name)
	case SharedLibrary:
		return fmt.Sprintf("library %s: ldconfig -p | grep %s", p.Name, p.Name)
	}
	return fmt.Sprintf("command %s: command -v %s", p.Name, p.Name)
}
