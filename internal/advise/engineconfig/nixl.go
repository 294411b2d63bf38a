package engineconfig

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
)

const nixlPoolSize = 64

// readNIXL reads the parameters that an application gives NIXL's HF3FS plugin.
func readNIXL(out *Config, content []byte, _ Params, _ func(string) (string, bool)) error {
	var values map[string]any
	var err error
	if text := bytes.TrimSpace(content); bytes.HasPrefix(text, []byte("{")) {
		values, err = decodeJSON(text)
	} else {
		values, err = envFile(out, content)
	}
	if err != nil {
		return err
	}
	m := newMapping(values, "", out)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if _, ok := values[key].(string); !ok && len(out.Problems) < maxUnknown {
			m.problem(Failure, clip(key), "is "+kindOf(values[key])+"; NIXL accepts only text", `write it in quotes`)
			values[key] = fmt.Sprint(values[key])
		}
	}
	mount := m.text("mount_point")
	if mount == "" {
		mount = "/mnt/3fs/"
		m.problem(Note, "mount_point", "is missing; the plugin looks at "+mount, "write the mount point")
	} else {
		checkMount(m, "mount_point", mount, false)
	}
	out.Mount = path.Clean(mount)
	m.choice("mem_config", "auto", "dram", "dram_zc")
	if s := m.text("iopool_size"); s != "" {
		const most = 1 << 20
		switch n, err := strconv.Atoi(s); {
		case err != nil:
			m.problem(Failure, "iopool_size", fmt.Sprintf("is %.80q; newer versions of the plugin do not start, older ones silently use %d", s, nixlPoolSize), "write a whole number in quotes")
		case n < 1:
			m.problem(Warning, "iopool_size", fmt.Sprintf("is %d; the plugin silently uses %d", n, nixlPoolSize), "write a whole number of at least 1 in quotes")
		case n > most:
			m.problem(Warning, "iopool_size", fmt.Sprintf("is %d; the plugin accepts at most %d", n, most), "write a smaller number")
		}
	}
	m.unknown(all)
	out.Need = nixlNeed()
	return nil
}
