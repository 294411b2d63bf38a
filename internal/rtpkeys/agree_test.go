package rtpkeys_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/rtpkeys"
	"github.com/kv3fs/kv3fs/kvstore"
)

// The environments of RTP-LLM's two tiers, complete.
var (
	direct = map[string]string{"REUSE_CACHE": "1", "ENABLE_3FS": "1", "BIZ_NAME": "b", "CHECKPOINT_PATH": "/m"}
	remote = map[string]string{"REUSE_CACHE": "1", "ENABLE_REMOTE_CACHE": "1", "KVCM_SERVER_ADDRESS": "host:6381"}
)

// forms are what every variable is given.
var forms = []string{
	"0", "1", "-1", "2", "3", "4", "5", "9", "16", "1023", "1024", "1025", "4096", "4097", "1048576", "1048577", "2147483647", "2147483648",
	"1125899906842624", "1125899906842625", "9223372036854775808", "+8", "08", "8.0", "1e3", "0x10", "1_0", "4G", "abc", "", "' 8 '", "'8'", `"8"`,
	"true", "True", "yes", "off", "null", "legacy", "canonical_v1", "Legacy", "[]", "{}",
}

// The store takes the value of a variable if, and only if, the doctor finds nothing that
// fails, in a file of variables and in a command line.
func TestStoreAndDoctorAgree(t *testing.T) {
	for name, tier := range map[string]struct {
		base  map[string]string
		names []string
	}{
		"direct": {direct, append(rtpkeys.Direct(), "TP_SIZE", "REUSE_CACHE", "ENABLE_3FS", "BIZ_NAME", "CHECKPOINT_PATH", "THREEFS_ROOT_DIR")},
		"remote": {remote, append(rtpkeys.Queries(), "TP_SIZE", "REUSE_CACHE", "ENABLE_REMOTE_CACHE", rtpkeys.ModelSDKConfig, "KVCM_CLIENT_CONFIG")},
	} {
		for _, variable := range tier.names {
			for _, write := range []func(map[string]string) string{variables, arguments} {
				taken := 0
				for _, form := range forms {
					taken += agree(t, name, write(with(tier.base, variable, form)))
				}
				if taken == 0 {
					t.Errorf("%s: no value of %s is taken", name, variable)
				}
			}
		}
	}
}

// The values that RTP-LLM refuses only together with others.
func TestAgreeOnCombinations(t *testing.T) {
	for _, query := range []string{"", "0", "1", "3", "4"} {
		for _, ofAll := range []string{"", "2", "3"} {
			for _, window := range []string{"", "0", "7"} {
				for _, backend := range []string{"", "0", "1", "2"} {
					env := with(with(with(with(remote, "KVCM_QUERY_TYPE", query), "KVCM_DEFAULT_QUERY_TYPE", ofAll), "KVCM_SW_SIZE", window), "KVCM_READ_BACKEND_TYPE", backend)
					takes := !(query == "3" || ofAll == "3" && (query == "" || query == "0")) || window == "7"
					takes = takes && (backend == "" || backend == "0" || query == "" || query <= "1")
					if taken := agree(t, "queries", variables(env)); (taken == 1) != takes {
						t.Errorf("%v: taken %d times", env, taken)
					}
				}
			}
		}
	}
}

// Both read the same JSON: what RTP-LLM parses itself, and what it passes on.
func TestAgreeOnJSON(t *testing.T) {
	values := []string{"0", "1", "-1", "8", "1.5", "8.0", "1e3", "4097", "1125899906842625", "99999999999999999999", `"8"`, `""`, `"INFO"`, `"/mnt/3fs"`, `"rel"`, "true", "null", "[]", "{}", `[1]`}
	taken, all := 0, 0
	try := func(variable, json string) {
		all++
		taken += agree(t, variable, variables(with(remote, variable, json)))
	}
	for _, key := range []string{"type", "mountpoint", "root_dir", "read_iov_size", "write_iov_size", "read_iov_block_size", "write_iov_block_size", "sdk_log_file_path", "sdk_log_level", "sdk_log_levle"} {
		for _, value := range append(values, `"3fs"`, `"hf3fs"`, `"mooncake"`) {
			for _, kind := range []string{"3fs", "hf3fs"} {
				backend := fmt.Sprintf(`{"type":%q,%q:%s}`, kind, key, value)
				if key == "type" {
					backend = fmt.Sprintf(`{"type":%s}`, value)
				}
				try(rtpkeys.ModelSDKConfig, "["+backend+"]")
				try("KVCM_CLIENT_CONFIG", `{"sdk_config":{"sdk_backend_configs":[`+backend+`]}}`)
			}
		}
	}
	for _, value := range values {
		for _, key := range []string{"thread_num", "queue_size", "timeout_config", "sdk_backend_configs", "threads"} {
			try("KVCM_CLIENT_CONFIG", fmt.Sprintf(`{"sdk_config":{%q:%s}}`, key, value))
		}
		try("KVCM_CLIENT_CONFIG", fmt.Sprintf(`{"instance_id":%s,"sdk_config":{}}`, value))
		try("KVCM_CLIENT_CONFIG", fmt.Sprintf(`{"sdk_config":%s}`, value))
		try("KVCM_CLIENT_CONFIG", value)
		try(rtpkeys.ModelSDKConfig, value)
		try(rtpkeys.ModelSDKConfig, "["+value+"]")
	}
	for _, broken := range []string{"[", "{", "[]]", "[] []", `{"sdk_config"}`} {
		try(rtpkeys.ModelSDKConfig, broken)
		try("KVCM_CLIENT_CONFIG", broken)
	}
	if taken < 100 || all-taken < 100 {
		t.Errorf("%d of %d are taken", taken, all)
	}
}

// What differs by design: a store is one tier, and needs no manager.
func TestWhereTheyDiffer(t *testing.T) {
	for _, c := range []struct {
		env           map[string]string
		store, doctor bool
	}{
		{with(remote, "ENABLE_3FS", "1"), false, true},
		{with(remote, "KVCM_SERVER_ADDRESS", ""), true, false},
	} {
		env := c.env
		if env["ENABLE_3FS"] != "" {
			env = with(with(env, "BIZ_NAME", "b"), "CHECKPOINT_PATH", "/m")
		}
		store, doctor := verdicts(t, variables(env))
		if (store == "") != c.store || (doctor == "") != c.doctor {
			t.Errorf("%v\n  store:  %s\n  doctor: %s", env, store, doctor)
		}
	}
}

func with(base map[string]string, name, value string) map[string]string {
	all := map[string]string{name: value}
	for other, is := range base {
		if other != name {
			all[other] = is
		}
	}
	return all
}

func names(env map[string]string) []string {
	var all []string
	for name := range env {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// variables writes an environment, a variable on each line.
func variables(env map[string]string) string {
	text := ""
	for _, name := range names(env) {
		text += name + "=" + env[name] + "\n"
	}
	return text
}

// arguments writes a command line.
func arguments(env map[string]string) string {
	text := "python3 -m rtp_llm.start_server"
	for _, name := range names(env) {
		value := env[name]
		if !strings.HasPrefix(value, "'") && !strings.HasPrefix(value, `"`) {
			value = "'" + value + "'"
		}
		text += " --" + strings.ToLower(name) + " " + value
	}
	return text + "\n"
}

// agree compares the two, and returns 1 if both take a file.
func agree(t *testing.T, what, src string) int {
	t.Helper()
	store, doctor := verdicts(t, src)
	if (store == "") != (doctor == "") {
		t.Errorf("%s:\n%s\n  store:  %s\n  doctor: %s", what, src, store, doctor)
	}
	if store == "" && doctor == "" {
		return 1
	}
	return 0
}

// verdicts returns why each of them refuses a file, "" if it does not.
func verdicts(t *testing.T, src string) (store, doctor string) {
	t.Helper()
	if _, _, err := kvstore.ReadConfig([]byte(src)); err != nil {
		store = err.Error()
	}
	c, err := engineconfig.Read(engineconfig.RTPLLM, "env", []byte(src), engineconfig.Params{}, nil)
	if err != nil {
		return store, err.Error()
	}
	for _, p := range c.Problems {
		if p.Severity == engineconfig.Failure {
			doctor = p.Key + " " + p.What
		}
	}
	return store, doctor
}
