package engineconfig

import (
	"fmt"
	"strings"
)

// checkList says what must be on the host before the engine starts, in comment
// lines, so that the whole output can be pasted.
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
		what := fmt.Sprintf("/dev/shm with %s%s, and some to spare: df -h /dev/shm", size(total), p.forRanks())
		how := fmt.Sprintf("mount -o remount,size=%d /dev/shm   # if it has less; a container: --shm-size=%[1]d", p.shmSize(total))
		if p.shmKnown() && p.shmFits(total) {
			how = ""
		}
		item(what, how)
	}
	if p.Need.OpenFiles > 0 {
		item(fmt.Sprintf("%d open files for storage per rank, beside the engine's own: ulimit -Hn", p.Need.OpenFiles), "LimitNOFILE= in a systemd unit, --ulimit nofile= for a container")
	}
	if url := p.pageService(); url != "" {
		item("a page service at "+url, "kv3fs serve runs it on port 18000; alone: kv3fs pages serve --data DIR")
	}
	if p.Need.HashSeed {
		item("PYTHONHASHSEED equal in every process that shares these files", "else a restart finds nothing again")
	}
	if p.Need.Assumed != "" {
		fmt.Fprintf(&b, "# The sizes assume %s.\n", p.Need.Assumed)
	}
	return b.String()
}

// pageService is the URL that the configuration as written leads to.
func (p *plan) pageService() string {
	if p.Engine == SGLang {
		return p.PageService
	}
	return p.Need.PageService
}

// seenAt is where the engine looks for the mount.
func (p *plan) seenAt() string {
	if p.Engine == RTPLLM {
		return rtpMount
	}
	return p.Mount
}

// look is a package with the command that looks for it.
func (p Package) look() string {
	switch p.Kind {
	case PythonModule:
		return fmt.Sprintf("Python module %s: python3 -c 'import %s'", p.Name, p.Name)
	case SharedLibrary:
		return fmt.Sprintf("library %s: ldconfig -p | grep %s", p.Name, p.Name)
	}
	return fmt.Sprintf("command %s: command -v %s", p.Name, p.Name)
}
