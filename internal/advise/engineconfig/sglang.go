package engineconfig

import (
	"fmt"
	"math"
	"net/url"
	"path"
	"strings"
)

const (
	sglangTimeoutSeconds = 5 // client_timeout's default
	deadlineSeconds      = 5 // the default of kv3fs serve --deadline
)

// readSGLang reads the JSON of SGLANG_HICACHE_HF3FS_CONFIG_PATH.
func readSGLang(out *Config, content []byte, p Params, _ func(string) (string, bool)) error {
	values, err := decodeJSON(content)
	if err != nil {
		return err
	}
	m := newMapping(values, "", out)
	for _, key := range []string{"file_path_prefix", "file_size", "numjobs", "entries"} {
		if !m.has(key) {
			m.problem(Failure, key, "is missing; SGLang does not start without it", "add it")
		}
	}
	if prefix := m.text("file_path_prefix"); prefix != "" {
		checkBase(m, "file_path_prefix", prefix, "")
		if strings.HasSuffix(prefix, "/") {
			m.problem(Warning, "file_path_prefix", "ends with a slash; the files would be called .0.bin, .1.bin", "write a directory and the beginning of a name, such as /mnt/3fs/sglang/hicache")
		}
		out.BasePaths = []string{path.Dir(prefix)}
	}
	count := func(key string, fallback int64) int {
		return int(m.number(key, bounds{fallback: fallback, min: 1, max: 1024, converts: true}))
	}
	p.Clients, p.Entries = count("numjobs", sglangJobs), count("entries", sglangEntries)
	p.FileBytes = m.number("file_size", bounds{fallback: 1 << 40, min: 1, max: math.MaxInt64, converts: true})
	const late = "a reply after it is mistaken for one of the next batch, so it must be above kv3fs's --deadline, 5 s unless kv3fs serve says otherwise"
	switch seconds := m.number("client_timeout", bounds{fallback: sglangTimeoutSeconds, min: 1, max: 3600}); {
	case !m.has("client_timeout"):
		m.problem(Note, "client_timeout", fmt.Sprintf("is missing, so it is %d s; ", sglangTimeoutSeconds)+late, "write 10")
	case seconds <= deadlineSeconds:
		m.problem(Warning, "client_timeout", fmt.Sprintf("is %d s; ", seconds)+late, "write 10")
	}
	m.child("pools")
	m.ignored(Warning, "use_mock_hf3fs_client", "is not read from this file", "put it in the JSON of --hicache-storage-backend-extra-config; it turns the rings off")
	service := m.text("metadata_server_url")
	switch {
	case service == "" && p.Model.MLA():
		m.problem(Failure, "metadata_server_url", "is missing; SGLang does not start with an MLA model, whose ranks share the files of rank 0", "write the URL of a page service, such as http://localhost:18000")
	case service == "":
		m.problem(Note, "metadata_server_url", "is missing; each process then maps pages in its own memory: nothing is found after a restart, and MLA models do not start", "write the URL of a page service, such as http://localhost:18000")
	case !isURL(service):
		m.problem(Failure, "metadata_server_url", fmt.Sprintf("%.80q is not a URL with a host", service), "write http://HOST:18000")
		service = ""
	}
	m.unknown(all)
	out.Need, err = sglangNeed(p)
	out.Need.PageService = service
	return err
}

// isURL reports whether a page service can be reached by a text.
func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}
