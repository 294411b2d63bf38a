package engineconfig

import (
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"text/template"
	"unicode"

	"github.com/dustin/go-humanize"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

// Deployment describes what Write creates a configuration for.
type Deployment struct {
	Form         string      // one of Forms; "" means the first
	Mount        string      // mount point of the 3FS; lmcache-gds with Dirs needs none
	Unmounted    bool        // nothing is mounted there yet
	Dirs         []string    // directories to store in; empty means one below the mount, named after the engine
	ModelName    string      // with which the engine is started; "" leaves a placeholder
	Model        model.Shape // zero means a model of the 8B class
	TP           int         // tensor-parallel ranks on this host; 0 means 1
	BlockTokens  int         // tokens of a chunk, page or block; 0 means the engine's default
	ShmFreeBytes int64       // free in /dev/shm; 0, if ShmTaken is 0 too, means unknown: sizes are the defaults
	ShmUsedBytes int64       // used in /dev/shm already
	FileBytes    int64       // vLLM, SGLang: file of one rank; 0 means 100 GiB
	ExtraPools   int         // SGLang: pools of a hybrid model besides the KV cache
	PageService  string      // SGLang: URL; "" means http://localhost:18000
}

// Section is a part of the output that can be copied unchanged.
type Section struct {
	Name  string // of the file to store it in; "" for text to read
	Title string
	Text  string
}

// Written is a configuration and what it needs.
type Written struct {
	Sections []Section
	Need     Need
	Notes    []string // what was chosen, and why
	Warnings []string // why it will not work on the host as described
}

// Forms lists an engine's kinds of configuration, the usual one first.
func Forms(engine string) []string {
	switch engine {
	case LMCache:
		return []string{"remote", "mp"}
	case RTPLLM:
		return []string{"kvcm", "direct"}
	}
	return []string{"plain"}
}

// Write creates a configuration in which Read finds no warnings or failures. An error
// names the part of the deployment that makes this impossible.
func Write(engine string, d Deployment) (*Written, error) {
	if err := known(engine); err != nil {
		return nil, err
	}
	d.Form = cmp.Or(d.Form, Forms(engine)[0])
	if !slices.Contains(Forms(engine), d.Form) {
		return nil, fmt.Errorf("%s has no form %.40q (known: %s)", engine, d.Form, strings.Join(Forms(engine), ", "))
	}
	if err := d.check(engine); err != nil {
		return nil, err
	}
	p, err := newPlan(engine, d)
	if err != nil {
		return nil, err
	}
	t, err := template.New("").Funcs(template.FuncMap{
		"json": jsonText, "sh": shellText, "jsonsh": jsonInShell, "size": size, "join": strings.Join,
	}).ParseFS(templates, "templates/*")
	if err != nil {
		return nil, err
	}
	w := &Written{Need: p.Need, Notes: p.notes, Warnings: p.warnings}
	for _, s := range sections(engine, d.Form) {
		var b strings.Builder
		if err := t.ExecuteTemplate(&b, s.template, p); err != nil {
			return nil, err
		}
		if s.config {
			if err := approve(engine, s.template, b.String(), Params{Model: d.Model, TP: d.TP, BlockTokens: d.BlockTokens}); err != nil {
				return nil, err
			}
		}
		name := s.template
		if !strings.HasPrefix(name, "notes-") {
			w.Sections = append(w.Sections, Section{name, s.title, b.String()})
			continue
		}
		w.Sections = append(w.Sections, Section{"", s.title, b.String()})
	}
	w.Sections = append(w.Sections, Section{"", "requirements", checkList(p)})
	return w, nil
}

//go:embed templates
var templates embed.FS

// part describes a section: its template, its title, and whether Read can read it.
type part struct {
	template, title string
	config          bool
}

func sections(engine, form string) []part {
	notes := part{"notes-" + engine + ".txt", "notes", false}
	switch engine + " " + form {
	case LMCache + " remote":
		return []part{
			{"lmcache.yaml", "LMCache's configuration, by plugin name", true},
			{"lmcache-url.yaml", "the same by URL, for an LMCache without remote_storage_plugins", true},
			{"start-lmcache.sh", "environment and command line", false}, notes,
		}
	case LMCache + " mp":
		return []part{{"start-lmcache-mp.sh", "LMCache's server, environment and command lines", true}, notes}
	case LMCacheGDS + " plain":
		return []part{
			{"lmcache-gds.yaml", "LMCache's configuration", true},
			{"start-lmcache-gds.sh", "environment and command line", false}, notes,
		}
	case VLLM + " plain":
		return []part{{"start-vllm.sh", "command line", true}, notes}
	case SGLang + " plain":
		return []part{
			{"sglang-hf3fs.json", "HiCache's configuration", true},
			{"start-sglang.sh", "environment and command line", false}, notes,
		}
	case UCM + " plain":
		return []part{{"ucm.yaml", "UCM's configuration", true}, {"start-ucm.sh", "command line", false}, notes}
	case RTPLLM + " kvcm":
		return append([]part{{"rtp-llm.env", "environment", true}}, append(rtpContainers(), notes)...)
	case RTPLLM + " direct":
		return append([]part{{"rtp-llm-direct.env", "environment", true}}, append(rtpContainers(), notes)...)
	case Mooncake + " plain":
		return []part{{"mooncake.env", "environment of the master and of every client", true}, {"start-mooncake.sh", "command lines", false}, notes}
	default:
		return []part{{"nixl-hf3fs.json", "parameters of the plugin", true}, notes}
	}
}

// rtpContainers lists the parts that say how RTP-LLM's container sees the mount and /dev/shm.
func rtpContainers() []part {
	return []part{
		{"start-rtp-llm.sh", "a container on a host that serves a 3FS", false},
		{"rtp-llm-pod.yaml", "a pod for Kubernetes, with kv3fs in it", false},
		{"rtp-llm-container.json", "the same volumes for RTP-LLM's own platform", false},
	}
}

// approve checks the output of a template with Read.
func approve(engine, name, text string, p Params) error {
	c, err := Read(engine, name, []byte(text), p, nil)
	if err != nil {
		return fmt.Errorf("the configuration cannot be read back: %w", err)
	}
	for _, found := range c.Problems {
		if found.Severity > Note {
			return fmt.Errorf("the configuration %s would not work: %s %s; %s", name, found.Key, found.What, found.Fix)
		}
	}
	return nil
}

// check rejects deployments that no configuration can express.
func (d Deployment) check(engine string) error {
	needsMount := engine != LMCacheGDS || len(d.Dirs) == 0
	switch {
	case d.Mount == "" && needsMount:
		return errors.New("the mount point is missing")
	case d.Mount != "" && (!strings.HasPrefix(d.Mount, "/") || path.Clean(d.Mount) != d.Mount):
		return fmt.Errorf("the mount point %.80q must be an absolute path without a slash at the end", d.Mount)
	case d.Mount == "/":
		return errors.New("the mount point cannot be /, the root of the host; write where the 3FS is, such as /mnt/3fs")
	case len(d.Mount) > longestMount:
		return fmt.Errorf("the mount point %.40q... has %d bytes, but a ring holds only %d; mount at a shorter path", d.Mount, len(d.Mount), longestMount)
	case strings.ContainsFunc(d.Mount, unicode.IsSpace):
		return fmt.Errorf("the mount point %.80q contains whitespace, so the client library cannot find it; mount at another path", d.Mount)
	}
	for _, dir := range d.Dirs {
		switch {
		case !strings.HasPrefix(dir, "/") || strings.ContainsFunc(dir, func(r rune) bool { return unicode.IsControl(r) || r == ',' }):
			return fmt.Errorf("the directory %.80q must be an absolute path without commas", dir)
		case engine != LMCacheGDS && !below(dir, d.Mount):
			return fmt.Errorf("the directory %.80q is not below the mount point %s", dir, d.Mount)
		}
	}
	fixed := engine == UCM || engine == RTPLLM || engine == NIXL
	if len(d.Dirs) > 0 && fixed {
		return fmt.Errorf("the directory of %s cannot be chosen; omit it (--dir)", engine)
	}
	if len(d.Dirs) > 1 && engine != LMCache && engine != LMCacheGDS {
		return fmt.Errorf("%s stores in one directory; give only one (--dir)", engine)
	}
	switch {
	case d.FileBytes != 0 && engine != VLLM && engine != SGLang:
		return fmt.Errorf("%s keeps no file of a fixed size for each rank; omit the file size (--file-size)", engine)
	case d.ExtraPools != 0 && engine != SGLang:
		return fmt.Errorf("%s has no extra pools; omit them (--extra-pools)", engine)
	case d.PageService != "" && engine == VLLM:
		return fmt.Errorf("vllm always uses the page service at %s; omit the URL (--page-service)", vllmPageService)
	case d.PageService != "" && engine != SGLang:
		return fmt.Errorf("%s uses no page service; omit the URL (--page-service)", engine)
	case d.BlockTokens != 0 && DefaultBlockTokens(engine) == 0:
		return fmt.Errorf("%s takes the size of a block from the application; omit the tokens (--block-tokens)", engine)
	}
	if d.FileBytes < 0 || d.ShmUsedBytes < 0 || d.ShmFreeBytes < 0 || d.BlockTokens < 0 || d.ExtraPools < 0 || d.TP < 0 {
		return errors.New("sizes and counts cannot be negative")
	}
	if strings.ContainsFunc(d.ModelName+d.PageService, unicode.IsControl) {
		return errors.New("the model's name or the page service's URL contains control characters")
	}
	return nil
}

func size(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }

func jsonText(s string) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(s)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// jsonInShell returns JSON text for use within a shell's single quotes.
func jsonInShell(s string) (string, error) {
	s, err := jsonText(s)
	return strings.ReplaceAll(s, "'", `'\''`), err
}

// shellText returns text as one shell word, quoted if necessary.
func shellText(s string) string {
	plain := func(r rune) bool {
		return r == '/' || r == '.' || r == '-' || r == '_' || r == ':' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
