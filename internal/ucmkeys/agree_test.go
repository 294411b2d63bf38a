package ucmkeys_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/parser"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/pyyaml"
	"github.com/kv3fs/kv3fs/internal/ucmkeys"
	"github.com/kv3fs/kv3fs/kvstore"
)

// chains are UCM's, with a 3FS.
var chains = []string{"Cache|Ds3fs", "Cache|Posix"}

// file is a file of UCM's in which a key, of the store or of UCM's connector, has a value.
func file(chain, key, value string, ofConnector bool) []byte {
	config := [][2]string{{"store_pipeline", fmt.Sprintf("%q", chain)}, {"storage_backends", "/mnt/3fs"}}
	top := ""
	if ofConnector {
		top = key + ": " + value + "\n"
	} else if key == config[0][0] {
		config[0][1] = value
	} else if key == config[1][0] {
		config[1][1] = value
	} else {
		config = append(config, [2]string{key, value})
	}
	text := top + "ucm_connectors:\n  - ucm_connector_name: UcmPipelineStore\n    ucm_connector_config:\n"
	for _, line := range config {
		text += "      " + line[0] + ": " + line[1] + "\n"
	}
	return []byte(text)
}

// values are what every key is given.
func values(key string) []string {
	all := []string{
		"0", "1", "-1", "2", "5", "6", "8", "32", "33", "1024", "1025", "4096", "1000000", "2592000000", "9223372036854775807", "9223372036854775808", "99999999999999999999",
		"010", "08", "0x20", "0o40", "0b100", "1_0", "1_000", "1:30", "+8", "1.5", "0.5", "8.0", "1.0", "1e3", "1.0e+3", "1e400", ".inf", ".nan", "-0.5",
		"'8'", `"8"`, "' 8 '", "'30000'", "'1.5'", "'0x10'", "64GB", "'64 GiB'", "64 parsecs", "8388608TB", "'0'", "'-1'",
		"true", "false", "True", "FALSE", "yes", "Yes", "on", "ON", "no", "off", "yEs", "'true'", "'false'", `"yes"`,
		"null", "~", "", "''", "some", "psync", "aio", "PSYNC", "uring", "'aio'", "[1]", "['8']", "[]", "[0, 1]", "[-1]", "{}", "{a: 1}", "2026-11-26",
	}
	if r, known := ucmkeys.RangeOf(key); known {
		for _, n := range []int64{r.Least, r.Most} {
			all = append(all, fmt.Sprint(n), fmt.Sprintf("'%d'", n), fmt.Sprintf("0x%x", max(n, 0)))
		}
		if r.Least > math.MinInt64 {
			all = append(all, fmt.Sprint(r.Least-1))
		}
		if r.Most < math.MaxInt64 {
			all = append(all, fmt.Sprint(r.Most+1))
		}
	}
	return all
}

// The store takes a value if, and only if, the doctor finds nothing that fails: of every key,
// in every form, with every chain.
func TestStoreAndDoctorAgree(t *testing.T) {
	for _, ofConnector := range []bool{false, true} {
		keys := ucmkeys.Keys()
		if ofConnector {
			keys = ucmkeys.ConnectorKeys()
		}
		for _, key := range keys {
			for _, chain := range chains {
				taken, refused := 0, 0
				for _, value := range values(key) {
					if differ(t, chain, key, value) {
						continue
					}
					store, doctor := verdicts(t, chain, key, value, ofConnector)
					if (store == "") != (doctor == "") {
						t.Errorf("%s: %s: %s\n  store:  %s\n  doctor: %s", chain, key, value, store, doctor)
					}
					if store == "" {
						taken++
					} else {
						refused++
					}
				}
				isText := key == "store_pipeline" || key == "storage_backends"
				if taken == 0 && !isText || refused == 0 {
					t.Errorf("%s: %s: %d values are taken, %d refused", chain, key, taken, refused)
				}
			}
		}
	}
}

// differ reports whether the two differ about a value by design; see TestWhereTheyDiffer.
func differ(t *testing.T, chain, key, text string) bool {
	file, err := parser.ParseBytes([]byte("key: "+text), 0)
	if err != nil {
		t.Fatal(text, err)
	}
	decoded, err := pyyaml.Decode(file.Docs[0].Body)
	if err != nil {
		t.Fatal(text, err)
	}
	value := decoded.(map[string]any)["key"]
	n, _ := pyyaml.Whole(value)
	switch key {
	case "store_pipeline", "storage_backends": // which text, each judges on its own
		is, _ := value.(string)
		return is != ""
	case "ior_depth":
		return n > 1
	case "posix_capacity_gb":
		return n > 0 && chain == "Cache|Posix"
	case "load_only_first_rank":
		return value == true
	}
	return false
}

// UCM takes a value if it is of the type that UCM's stores ask for.
func TestFormsThatUCMTakes(t *testing.T) {
	for _, chain := range chains {
		for key, forms := range map[string]map[string]bool{
			"stream_number":            {"010": true, "0x20": true, "1_0": true, "1:30": true, "+8": true, "'8'": false, "0o40": false, "8.0": false, "null": false, "": false, "true": false},
			"timeout_ms":               {"'30000'": false, "30_000": true, "1e3": false},
			"io_direct":                {"yes": true, "off": true, "'true'": false, "1": false, "yEs": false, "~": false},
			"buffer_size":              {"0x10": true, "1_000": true, "'1000'": true, "64 GiB": true, "1.5": false, "null": false},
			"posix_io_engine":          {"psync": true, "aio": true, "uring": false, "3": false},
			"block_size":               {"x": false, "4096": true, "'4096'": false},
			"posix_capacity_gb":        {"-1": false, "1.5": false, "x": false, "0": true},
			"posix_gc_recycle_percent": {"0.1": true, "1.0": true, "1": false, "0.0": false, "'0.1'": false},
			"cpu_affinity_cores":       {"[0, 1]": true, "[]": true, "0": false, "[a]": false},
		} {
			for form, takes := range forms {
				store, doctor := verdicts(t, chain, key, form, false)
				if (store == "") != takes || (doctor == "") != takes {
					t.Errorf("%s: %s: %s: want %v\n  store:  %s\n  doctor: %s", chain, key, form, takes, store, doctor)
				}
			}
		}
	}
}

// What differs by design: our stores do not need a ring to fill, and Posix enforces no
// capacity here; UCM does not run with what the doctor refuses.
func TestWhereTheyDiffer(t *testing.T) {
	for _, c := range []struct {
		chain, key, value string
		ofConnector       bool
		store, doctor     bool // each takes it
	}{
		{"Cache|Ds3fs", "ior_depth", "2", false, true, false},
		{"Cache|Posix", "posix_capacity_gb", "500", false, false, true},
		{"Cache|Ds3fs", "load_only_first_rank", "true", true, true, false},
		{"Cache|Ds3fs", "store_pipeline", "Segment", false, true, false},
		{"Cache|Ds3fs", "storage_backends", "some", false, true, false},
	} {
		store, doctor := verdicts(t, c.chain, c.key, c.value, c.ofConnector)
		if (store == "") != c.store || (doctor == "") != c.doctor {
			t.Errorf("%+v\n  store:  %s\n  doctor: %s", c, store, doctor)
		}
	}
}

// verdicts returns why each of them refuses a value, "" if it does not.
func verdicts(t *testing.T, chain, key, value string, ofConnector bool) (store, doctor string) {
	t.Helper()
	src := file(chain, key, value, ofConnector)
	if _, _, err := kvstore.ReadConfig(src); err != nil {
		store = err.Error()
		if !strings.Contains(store, key) {
			t.Errorf("the store does not name %s: %s: %s", key, value, store)
		}
	}
	c, err := engineconfig.Read(engineconfig.UCM, "ucm.yaml", src, engineconfig.Params{}, nil)
	if err != nil {
		t.Fatalf("%s: %s: %v", key, value, err)
	}
	name := "ucm_connectors[0].ucm_connector_config." + key
	if ofConnector {
		name = key
	}
	for _, p := range c.Problems {
		if p.Severity == engineconfig.Failure && p.Key == name {
			doctor = p.What
		}
	}
	return store, doctor
}
