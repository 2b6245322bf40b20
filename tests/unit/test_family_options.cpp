// Every option that a family reads from config.json: in one model of tests/fixtures/families at least it is
// away from its default, so that the model is another one without it; or it is refused. The options are found
// in the sources of the families, so a new one cannot be forgotten. The manual's table of options is made
// from the same.
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/model/families/family.h"
#include "engine/model/model.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/transformers_run.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace keyhole::test_family_options {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Pointer = Json::json_pointer;

const fs::path kFamilies = reference::source_folder() / "tests/fixtures/families";
const fs::path kSources = reference::source_folder() / "engine/model/families";

/// An option that is refused: a fixture's config.json with this value.
struct Refused {
    const char* fixture;
    const char* at;
    Json value;
};

const Refused kRefused[] = {
    {"bloom", "/apply_residual_connection_post_layernorm", true},
    {"cohere", "/use_qk_norm", true},
    {"cohere2", "/use_qk_norm", true},
    {"falcon", "/alibi", true},
    {"falcon", "/bias", true},
    {"falcon", "/multi_query", false},
    {"falcon", "/parallel_attn", false},
    {"gemma2", "/attention_bias", true},
    {"gemma3", "/attention_bias", true},
    {"gemma3", "/attn_logit_softcapping", 50.0},
    {"gemma3", "/final_logit_softcapping", 30.0},
    {"gemma3", "/use_bidirectional_attention", true},
    {"gpt2", "/add_cross_attention", true},
    {"gpt2", "/scale_attn_by_inverse_layer_idx", true},
    {"gpt_oss", "/attention_bias", false},
    {"gpt_oss", "/swiglu_alpha", 1.5},
    {"gpt_oss", "/swiglu_limit", 6.0},
    {"gpt_oss_mxfp4", "/quantization_config/quant_method", "awq"},
    {"mlkv", "/use_key_value_mlp", true},
    {"mpt", "/attn_config/alibi", false},
    {"mpt", "/attn_config/attn_type", "multiquery_attention"},
    {"mpt", "/attn_config/attn_uses_sequence_id", true},
    {"mpt", "/attn_config/prefix_lm", true},
    {"mpt", "/attn_config/qk_ln", true},
    {"mpt", "/embedding_fraction", 0.5},
    {"mpt", "/logit_scale", 0.5},
    {"mpt", "/norm_type", "rmsnorm"},
    {"opt", "/layer_norm_elementwise_affine", false},
    {"phi2", "/qk_layernorm", true},
    {"phi3", "/attention_bias", true},
    {"stablelm", "/qk_layernorm", true},
};
/// The same in every family.
const Refused kRefusedEverywhere[] = {
    {"llama_linear", "/is_causal", false},
    {"llama_linear", "/partial_rotary_factor", 0.5},
    {"llama_linear", "/quantization_config", {{"quant_method", "gptq"}}},
    {"llama_linear", "/rope_parameters/rope_type", "ntk"},
    {"llama_linear", "/text_config", {{"hidden_size", 32}}},
};

/// Keys that no model of the fixtures can show, and why.
const std::map<std::string, const char*> kNotShown = {
    // They change no number: ids of tokens, the trained context, what chooses the family.
    {"bos_token_id", "an id"},
    {"eos_token_id", "an id"},
    {"max_position_embeddings", "the trained context"},
    {"max_seq_len", "the trained context"},
    {"n_positions", "the trained context"},
    {"seq_length", "the trained context"},
    {"architectures", "the family"},
    {"model_type", "the family"},
    // lm_head.weight counts where it is there, whatever this says.
    {"tie_word_embeddings", "the weights"},
    // Older spellings, and patterns that layer_types or a list says too: OlderFormsSayTheSame.
    {"_sliding_window_pattern", "layer_types"},
    {"sliding_window_pattern", "layer_types"},
    {"max_window_layers", "layer_types"},
    {"no_rope_layer_interval", "no_rope_layers"},
    {"rope_local_base_freq", "rope_parameters"},
    {"rotary_emb_base", "rope_parameters"},
    {"rotary_pct", "rope_parameters"},
    {"type", "rope_type"},
    {"n_embed", "hidden_size"},
    {"num_local_experts", "num_experts"},
    // Not of config.json: what GGUF files say, and a place where no scaling is.
    {"keyhole_norms_are_gains", "GGUF files"},
    {"none", "no key"},
};

/// Keys of one file that its models do not show.
const std::set<std::pair<std::string, std::string>> kOnlyHere = {
    {"gptj.cpp", "rope_theta"},           // its base is always 10000
    {"mpt.cpp", "expansion_ratio"},       // transformers takes 4: WhatIsMissingIsRefusedByName
    {"exaone4.cpp", "layer_types"},       // sliding_window_pattern says it too
    {"exaone.cpp", "num_hidden_layers"},  // its own code says num_layers
    {"bloom.cpp", "num_attention_heads"}, {"bloom.cpp", "num_hidden_layers"},
};

Json config_of(const std::string& fixture) {
    return Json::parse(read_text_file(kFamilies / fixture / "config.json"));
}

/// Returns the places of a key in a configuration, whatever object it is in.
void find_places(const Json& json, const std::string& at, const std::string& key,
                 std::vector<std::string>& places) {
    for (const auto& [name, value] : json.items()) {
        const std::string here = at + "/" + name;
        if (name == key && !value.is_null()) places.push_back(here);
        if (value.is_object()) find_places(value, here, key, places);
    }
}

/// Returns how far the changed fixture is from what transformers computed for the unchanged one, as a share
/// of the tolerance; a large number where it does not load.
double distance_with(const std::string& fixture, const Json& config) {
    const reference::TempFolder folder("family-options");
    fs::copy(kFamilies / fixture, folder.path(), fs::copy_options::recursive);
    write_text_file(folder.path() / "config.json", config.dump());
    constexpr double kFar = 1e9;
    try {
        load_model(folder.path());
        return reference::error_to_transformers(folder.path(), 0).share;
    } catch (const Error&) {
        return kFar;
    }
}

/// Returns whether the fixture is another model without the key.
bool shows(const std::string& fixture, const std::string& key) {
    static std::map<std::pair<std::string, std::string>, bool> known;
    const auto [entry, is_new] = known.try_emplace({fixture, key}, false);
    if (!is_new) return entry->second;
    const Json whole = config_of(fixture);
    static std::set<std::string> compared;
    if (compared.insert(fixture).second) {
        EXPECT_LT(distance_with(fixture, whole), 1.0) << fixture;
    }
    std::vector<std::string> places;
    find_places(whole, "", key, places);
    for (const std::string& place : places) {
        Json config = whole;
        const Pointer pointer(place);
        config.at(pointer.parent_pointer()).erase(pointer.back());
        constexpr double kShows = 5.0;
        if (distance_with(fixture, config) > kShows) return entry->second = true;
    }
    return false;
}

std::string family_of_fixture(const std::string& fixture) {
    return std::string(family_of(ConfigFile(kFamilies / fixture / "config.json")).name);
}

/// Returns the fixtures of each family.
const std::map<std::string, std::vector<std::string>>& fixtures_of_families() {
    static const auto of = [] {
        std::map<std::string, std::vector<std::string>> fixtures;
        for (const auto& entry : fs::directory_iterator(kFamilies)) {
            const std::string name = entry.path().filename();
            fixtures[family_of_fixture(name)].push_back(name);
        }
        for (auto& [family, names] : fixtures) std::sort(names.begin(), names.end());
        return fixtures;
    }();
    return of;
}

/// A source of families: those that it defines, and the keys that it reads.
struct Source {
    std::string file;
    std::vector<std::string> families;  ///< empty: it reads for all
    std::set<std::string> keys;
};

std::vector<Source> sources() {
    static const std::regex kFamily("const Family k\\w+ = \\{\\s*\"(\\w+)\""), kKey("\"((/[A-Za-z_]+)+)\"");
    std::vector<Source> all;
    for (const auto& entry : fs::directory_iterator(kSources)) {
        if (entry.path().extension() != ".cpp") continue;
        const std::string text = read_text_file(entry.path());
        Source& source = all.emplace_back(Source{entry.path().filename(), {}, {}});
        for (std::sregex_iterator at(text.begin(), text.end(), kFamily), end; at != end; ++at)
            source.families.push_back((*at)[1]);
        for (std::sregex_iterator at(text.begin(), text.end(), kKey), end; at != end; ++at) {
            std::istringstream parts((*at)[1].str().substr(1));
            for (std::string key; std::getline(parts, key, '/');) source.keys.insert(key);
        }
    }
    return all;
}

bool is_refused(const std::string& fixture, const std::string& key) {
    const auto is = [&](const Refused& one) {
        return one.fixture == fixture &&
               (std::string(one.at) + "/").find("/" + key + "/") != std::string::npos;
    };
    return std::any_of(std::begin(kRefused), std::end(kRefused), is) ||
           std::any_of(std::begin(kRefusedEverywhere), std::end(kRefusedEverywhere), is);
}

TEST(FamilyOptions, EachChangesAModelOrIsRefused) {
    int n = 0;
    for (const Source& source : sources()) {
        std::vector<std::string> fixtures;
        for (const auto& [family, names] : fixtures_of_families())
            if (source.families.empty() || std::count(source.families.begin(), source.families.end(), family))
                fixtures.insert(fixtures.end(), names.begin(), names.end());
        for (const std::string& key : source.keys) {
            if (kNotShown.count(key) != 0 || kOnlyHere.count({source.file, key}) != 0) continue;
            ++n;
            EXPECT_TRUE(std::any_of(
                fixtures.begin(), fixtures.end(),
                [&](const std::string& fixture) { return is_refused(fixture, key) || shows(fixture, key); }))
                << source.file << " reads " << key
                << ", which no model of tests/fixtures/families has away from its default: add one to "
                   "make_fixtures.py, or a row to kRefused";
        }
    }
    EXPECT_GT(n, 150);
}

TEST(FamilyOptions, WhatIsRefusedIsNamed) {
    const auto refuse = [](const Refused& one) {
        SCOPED_TRACE(std::string(one.fixture) + " " + one.at);
        const reference::TempFolder folder("family-refused");
        fs::copy(kFamilies / one.fixture, folder.path(), fs::copy_options::recursive);
        Json config = config_of(one.fixture);
        config[Pointer(one.at)] = one.value;
        write_text_file(folder.path() / "config.json", config.dump());
        try {
            load_model(folder.path());
            ADD_FAILURE() << "accepted";
        } catch (const Error& error) {
            const std::string said = error.what(), key = Pointer(one.at).back();
            EXPECT_EQ(error.code(), ErrorCode::unsupported) << said;
            EXPECT_EQ(said.find('\n'), std::string::npos) << said;
            EXPECT_NE(said.find("config.json"), std::string::npos) << said;
            const bool is_named = said.find(key) != std::string::npos ||
                                  (key == "rope_type" && said.find("of type ntk") != std::string::npos);
            EXPECT_TRUE(is_named) << said;
        }
    };
    for (const Refused& one : kRefused) refuse(one);
    for (const Refused& one : kRefusedEverywhere) refuse(one);
}

/// Returns the lines of the manual's table: what each family reads beside what all read, in which fixtures it
/// was seen to count, and what it refuses.
std::vector<std::string> options_table() {
    std::set<std::string> of_all;
    std::map<std::string, std::set<std::string>> read;
    for (const Source& source : sources())
        if (source.families.empty()) of_all.insert(source.keys.begin(), source.keys.end());
    for (const Source& source : sources())
        for (const std::string& family : source.families)
            for (const std::string& fixture : fixtures_of_families().at(family))
                for (const std::string& key : source.keys)
                    if (of_all.count(key) == 0 && kNotShown.count(key) == 0 && shows(fixture, key))
                        read[family].insert("`" + key + "`");
    std::vector<std::string> lines;
    for (const Family* family : families()) {
        const std::string name(family->name);
        std::set<std::string> refused;
        for (const Refused& one : kRefused)
            if (family_of_fixture(one.fixture) == name) refused.insert("`" + Pointer(one.at).back() + "`");
        for (const std::string& key : refused) read[name].erase(key);
        const auto listed = [](const std::set<std::string>& keys) {
            return keys.empty() ? std::string("none") : fmt::format("{}", fmt::join(keys, ", "));
        };
        lines.push_back(fmt::format("| `{}` | {} | {} | {} |", family->architectures.front(),
                                    listed(read[name]), listed(refused),
                                    fixtures_of_families().at(name).size()));
    }
    return lines;
}

TEST(FamilyOptions, TheManualsTableIsMadeFromTheseTests) {
    const std::string page = read_text_file(reference::source_folder() / "assets/manual/models.md");
    const std::string begin =
        "| architecture | options read | options refused | models compared |\n"
        "| --- | --- | --- | --- |\n";
    std::string table = begin;
    for (const std::string& line : options_table()) table += line + "\n";
    EXPECT_NE(page.find(table + "\n"), std::string::npos) << "the table should be\n\n" << table;
    // The version that the page names is the one that the fixtures were made with.
    const std::string pinned = read_text_file(reference::source_folder() / "tests/fixtures/requirements.txt");
    const std::size_t at = pinned.find("transformers==") + 14;
    const std::string version = pinned.substr(at, pinned.find('\n', at) - at);
    EXPECT_NE(page.find("`transformers` " + version + " on"), std::string::npos) << version;
}

}  // namespace
}  // namespace keyhole::test_family_options
