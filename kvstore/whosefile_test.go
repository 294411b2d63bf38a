package kvstore

import (
	"reflect"
	"strings"
	"testing"
)

const (
	direct = "REUSE_CACHE=1\nENABLE_3FS=1\nBIZ_NAME=chat\nCHECKPOINT_PATH=/models/m\n"
	remote = "# comment\nexport REUSE_CACHE=1\nENABLE_REMOTE_CACHE=true\nRECO_MODEL_SDK_CONFIG=[{\"type\": \"3fs\"}]\nTP_SIZE=4\n"
)

// KVCM's JSON and RTP-LLM's environment, arguments and scripts are read, and say what they say.
func TestReadConfigOfRTPLLM(t *testing.T) {
	rtp := RtpLlmOptions{Root: rtpLlmRoot, Biz: "chat", Checkpoint: "/models/m"}
	items := rtp
	items.ItemBlocks = 4
	other := rtp
	other.Biz = "b c"
	elsewhere := KvcmOptions{Root: "/mnt/3fs/kv", Instance: "17", EngineFileOptions: EngineFileOptions{Transfers: 8}}
	for name, c := range map[string]struct {
		src  string
		rtp  *RtpLlmOptions
		kvcm *KvcmOptions
		tp   int
		note string
	}{
		"an environment":        {direct + "PATH=/bin\nMAX_BLOCK_SIZE_PER_ITEM=4\nTHREEFS_READ_TIMEOUT_MS=9\n", &items, nil, 0, "THREEFS_READ_TIMEOUT_MS has no effect"},
		"Windows' line ends":    {strings.ReplaceAll(direct, "\n", "\r\n"), &rtp, nil, 0, ""},
		"quotes":                {"export BIZ_NAME='b c'\n" + direct[:27] + "CHECKPOINT_PATH=\"/models/m\"\n", &other, nil, 0, ""},
		"the last one counts":   {"BIZ_NAME=old\n" + direct, &rtp, nil, 0, ""},
		"a script":              {"#!/bin/sh\nset -e\ncd /srv\n" + direct + "exec python3 -m rtp_llm.start_server --tp_size 2\n", &rtp, nil, 0, ""},
		"arguments":             {"python3 -m rtp_llm.start_server --reuse_cache True --enable_3fs True --tp_size 4 --checkpoint_path /models/m \\\n --biz_name=chat", &rtp, nil, 4, ""},
		"arguments prevail":     {"BIZ_NAME=x TP_SIZE=8 ENABLE_3FS=1 rtp --reuse-cache 1 --tp_size=2 --biz_name chat --checkpoint_path /models/m", &rtp, nil, 2, ""},
		"a remote cache":        {remote, nil, &KvcmOptions{Root: kvcmRoot}, 4, "the SDK skips"},
		"its defaults":          {"REUSE_CACHE=1\nENABLE_REMOTE_CACHE=1\nKVCM_CLIENT_CONFIG={}\n", nil, &KvcmOptions{Root: kvcmRoot}, 0, ""},
		"a client's JSON in it": {"REUSE_CACHE=1\nENABLE_REMOTE_CACHE=1\nKVCM_CLIENT_CONFIG={\"instance_id\": \"17\", \"sdk_config\": {\"thread_num\": 8, \"sdk_backend_configs\": [{\"type\": \"hf3fs\", \"mountpoint\": \"/mnt/3fs\", \"root_dir\": \"kv\"}]}}\n", nil, &elsewhere, 0, ""},
		"a client":              {"\n {\n\t\"instance_id\": \"17\",\n\t\"sdk_config\": {\"thread_num\": 8, \"sdk_backend_configs\": [{\"type\": \"hf3fs\", \"mountpoint\": \"/mnt/3fs\", \"root_dir\": \"kv\"}]}}", nil, &elsewhere, 0, ""},
		"an SDK":                {`{"thread_num": 8}`, nil, &KvcmOptions{Root: kvcmRoot, EngineFileOptions: EngineFileOptions{Transfers: 8}}, 0, ""},
		"backends":              {`[{"type": "hf3fs", "mountpoint": "/mnt/3fs", "root_dir": "kv"}]`, nil, &KvcmOptions{Root: "/mnt/3fs/kv"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, notes, err := ReadConfig([]byte(c.src))
			chain := map[bool]string{true: rtpLlmName, false: kvcmName}[c.rtp != nil]
			if err != nil || got.StorePipeline != chain || !reflect.DeepEqual(got.RtpLlm, c.rtp) || !reflect.DeepEqual(got.Kvcm, c.kvcm) || got.Namespace.TPSize != c.tp {
				t.Fatalf("%s, %+v, %+v, TP %d, %v", got.StorePipeline, got.RtpLlm, got.Kvcm, got.Namespace.TPSize, err)
			}
			if !strings.Contains(strings.Join(notes, "\n"), c.note) {
				t.Errorf("notes: %q", notes)
			}
			got.Namespace, got.BlockSize = namespace, 4096
			to, err := got.Config("Cache|" + chain)
			if err != nil || !reflect.DeepEqual(to.RtpLlm, c.rtp) || !reflect.DeepEqual(to.Kvcm, c.kvcm) {
				t.Errorf("%+v, %+v, %v", to.RtpLlm, to.Kvcm, err)
			}
		})
	}
}

// A file that could be taken for another system's is that of the system that it names, or is
// refused with the reason.
func TestFilesThatLookLikeAnothers(t *testing.T) {
	for name, c := range map[string]struct{ src, chain, err string }{
		"UCM's, with a variable in a comment":     {"# BIZ_NAME=chat\n# rtp --reuse_cache True\nstore_pipeline: Posix\n", "Posix", ""},
		"UCM's, with a variable in a value":       {"store_pipeline: Posix\nunique_id: BIZ_NAME=chat --reuse_cache True\n", "Posix", ""},
		"UCM's, as JSON":                          {`{"ucm_connectors": [{"ucm_connector_name": "UcmPipelineStore", "ucm_connector_config": {"store_pipeline": "Posix"}}]}`, "Posix", ""},
		"LMCache's, as JSON":                      {`{"chunk_size": 256, "remote_url": "fs://h:0/data"}`, "LMCache", ""},
		"GDS's, with a variable in the path":      {"gds_path: /nvme/ENABLE_3FS=1\n", "Gds", ""},
		"an adapter of type hf3fs":                {`{"type": "hf3fs", "mount_point": "/m", "base_paths": "/m/a"}`, "LMCache", ""},
		"a backend of type hf3fs":                 {`{"type": "hf3fs", "mountpoint": "/m", "root_dir": "a"}`, "", "write the backends in a list"},
		"an adapter in a list":                    {`[{"type": "hf3fs", "mount_point": "/m"}]`, "", "did you mean mountpoint?"},
		"a script whose JSON looks like YAML":     {"REUSE_CACHE=1\nENABLE_REMOTE_CACHE=1\nRECO_MODEL_SDK_CONFIG=[{\"type\": \"3fs\", \"mountpoint\": \"/m\"}]\n", "Kvcm", ""},
		"a script that writes UCM's file":         {direct + "cat > ucm.yaml <<END\nstore_pipeline: Posix\nEND\n", "RtpLlm", ""},
		"RTP-LLM's, with LMCache's variables":     {direct + "LMCACHE_CHUNK_SIZE=256\n", "RtpLlm", ""},
		"a path with an equals sign first":        {"REUSE_CACHE=1\nENABLE_3FS=1\nBIZ_NAME=a=b\nCHECKPOINT_PATH=/m: x\n", "", "followed by"},
		"LMCache's variables":                     {"LMCACHE_CHUNK_SIZE=256\nLMCACHE_GDS_PATH=/nvme\n", "", "none of RTP-LLM's"},
		"KVCM's and LMCache's":                    {`{"thread_num": 8, "chunk_size": 256}`, "", "thread_num is a key of KVCM's and chunk_size"},
		"KVCM's and UCM's":                        {`{"sdk_backend_configs": [], "store_pipeline": "Posix"}`, "", "a file is for one of them"},
		"KVCM's as YAML":                          {"thread_num: 8\n", "", "line 1: thread_num is a key of KVCM's, whose files are JSON"},
		"RTP-LLM's as YAML":                       {"BIZ_NAME: chat\nENABLE_3FS: 1\n", "", "write BIZ_NAME=VALUE"},
		"JSON of nobody's":                        {`{"a": 1}`, "", "nor KVCM's JSON"},
		"both tiers":                              {direct + "ENABLE_REMOTE_CACHE=1\n", "", "are both on"},
		"no tier":                                 {"REUSE_CACHE=1\nBIZ_NAME=chat\n", "", "neither ENABLE_3FS nor ENABLE_REMOTE_CACHE"},
		"no cache":                                {"rtp --reuse_cache False --enable_3fs True", "", "REUSE_CACHE is not on"},
		"an argument without a value":             {"rtp --reuse_cache --enable_3fs True", "", "--reuse_cache has no value"},
		"a variable that would be expanded":       {direct + "BIZ_NAME=$NAME\n", "", "nothing is expanded here"},
		"two variables in a line":                 {"BIZ_NAME=chat CHECKPOINT_PATH=/m\nREUSE_CACHE=1\nENABLE_3FS=1\n", "", "on a line of its own"},
		"an open quote":                           {"BIZ_NAME='chat\n", "", "unclosed"},
		"a number that is none":                   {direct + "TP_SIZE=four\n", "", "TP_SIZE is \"four\""},
		"a variable of the tier that is unknown":  {direct + "THREEFS_READ_IOV_SIZ=1\n", "", "did you mean THREEFS_READ_IOV_SIZE?"},
		"a JSON that is broken, in a variable":    {"REUSE_CACHE=1\nENABLE_REMOTE_CACHE=1\nRECO_MODEL_SDK_CONFIG='[{]'\n", "", "RECO_MODEL_SDK_CONFIG is not a JSON list: it is no JSON"},
		"no BIZ_NAME":                             {"REUSE_CACHE=1\nENABLE_3FS=1\n", "", "BIZ_NAME is missing"},
		"an RTP-LLM's script without any setting": {"exec rtp --port 8088\n", "", "write keys and values"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := ReadConfig([]byte(c.src))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Count(err.Error(), "kvstore: ") != 1 {
					t.Errorf("%+v, %v; want %q", got.StorePipeline, err, c.err)
				}
				return
			}
			if err != nil || got.StorePipeline != c.chain {
				t.Errorf("%q, %v; want %s", got.StorePipeline, err, c.chain)
			}
		})
	}
}
