package engineconfig

import (
	"math"
	"path"
	"strings"
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
	m.number("client_timeout", bounds{fallback: 5, min: 1, max: 3600})
	m.child("pools")
	m.ignored(Warning, "use_mock_hf3fs_client", "is not read from this file", "put it in the JSON of --hicache-storage-backend-extra-config; it turns the rings off")
	url := m.text("metadata_server_url")
	switch {
	case url == "":
		m.problem(Note, "metadata_server_url", "is missing; each process then maps pages in its own memory: nothing is found after a restart, and MLA models do not start", "write the URL of a page service, such as http://localhost:18000")
	case !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://"):
		m.problem(Failure, "metadata_server_url", "is not a URL", "write http://HOST:18000")
	}
	m.unknown(all)
	out.Need, err = sglangNeed(p)
	out.Need.PageService = url
	return err
}
