// Saved policies: their files, what is refused, and that a name stands for a preset on the command line.
#include "app/base/saved_policies.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/spec_change.h"
#include "engine/trace/trace_file.h"
#include "tests/app/program_run.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <fstream>

namespace keyhole::testing::test_saved_policies {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class SavedPolicies : public ProgramRun {
  protected:
    static std::string what_of(const std::function<void()>& work) {
        try {
            work();
        } catch (const Error& error) {
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
            return error.what();
        }
        return "";
    }
    /// Writes a file and returns why it is refused; empty: it is read.
    std::string fault_of(const std::string& text) const {
        const fs::path file = path("theirs.policy.json");
        write_text_file(file, text);
        return what_of([&] { (void)read_saved_policy(file); });
    }
    static std::string with(const std::string& key, const json& value) {
        json file = {{"name", "theirs"}, {"spec", "h2o:budget=64"}, {"about", "A sentence."}};
        file[key] = value;
        return file.dump();
    }
};

void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

TEST_F(SavedPolicies, AreWrittenReadAndRemoved) {
    EXPECT_EQ(save_policy({"my-rule", "h2o:budget=64,alpha=0.5", "Mine.", "0.1"}), "");
    const SavedPolicy wanted{"my-rule", "h2o:budget=64,alpha=0.5", "Mine.", "0.1"};
    EXPECT_EQ(read_saved_policy(path("data/keyhole/policies/my-rule.policy.json")), wanted);
    EXPECT_EQ(json::parse(read("data/keyhole/policies/my-rule.policy.json")),
              (json{{"name", "my-rule"}, {"spec", wanted.spec}, {"about", "Mine."}, {"version", "0.1"}}));
    // The name of a lane is no part of its policy; what stood there before is said.
    EXPECT_EQ(save_policy({"my-rule", "x=tova:budget=32", "", ""}), wanted.spec);
    EXPECT_EQ(save_policy({"another", "window", "", ""}), "");
    write_text_file(path("data/keyhole/policies/broken.policy.json"), "{");
    const std::vector<ListedPolicy> all = list_saved_policies();
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(all[0].policy.name, "another");
    EXPECT_EQ(all[1].policy.name, "broken");
    expect_part(all[1].fault, "is not JSON at line 1, column 2");
    EXPECT_EQ(all[2].policy.spec, "tova:budget=32");
    remove_saved_policy("my-rule");
    EXPECT_FALSE(fs::exists(path("data/keyhole/policies/my-rule.policy.json")));
    expect_part(what_of([] { remove_saved_policy("my-rule"); }), "there is no saved policy 'my-rule'");
    EXPECT_NE(what_of([] { remove_saved_policy("../policies/another"); }), "");
    EXPECT_TRUE(fs::exists(path("data/keyhole/policies/another.policy.json")));
}

/// The window shows what stands in the folder, also what an editor writes into a file in place.
TEST_F(SavedPolicies, AFileThatIsEditedInPlaceIsReadAgain) {
    save_policy({"my-rule", "h2o:budget=64", "", ""});
    SavedPolicyList list;
    ASSERT_EQ(list.now().size(), 1u);
    const auto spec = [&] { return list.now().empty() ? "" : list.now().front().policy.spec; };
    EXPECT_EQ(spec(), "h2o:budget=64");
    const fs::path file = saved_policy_file("my-rule"), folder = saved_policies_folder();
    const auto of_folder = fs::last_write_time(folder), of_file = fs::last_write_time(file);
    const auto edit = [&](const std::string& text) {
        std::ofstream(file) << R"({"name": "my-rule", "spec": ")" << text << "\"}";
        fs::last_write_time(file, of_file);
        ASSERT_EQ(fs::last_write_time(folder), of_folder);
    };
    edit("h2o:budget=128");  // a longer file of the same time
    EXPECT_EQ(spec(), "h2o:budget=128");
    edit("h2o:budget=256");
    fs::last_write_time(file, of_file + std::chrono::seconds(1));  // as long as before
    EXPECT_EQ(spec(), "h2o:budget=256");
    fs::remove(file);
    EXPECT_TRUE(list.now().empty());
}

/// Another machine has the job file and not the saved policies.
TEST_F(SavedPolicies, AJobFileHasTheSpec) {
    save_policy({"my-rule", "h2o:budget=48,alpha=0.5", "", ""});
    ASSERT_EQ(run("sweep --model '" + kModel +
                  "' --task needle --samples 4 --lane full --lane my-rule "
                  "--lane=my-rule:budget=64 -lmy-rule:budget=96 --against my-rule --job parallel --out job"),
              0)
        << output_;
    const std::string job = read("job/job.sh");
    for (const std::string lane :
         {"--lane my-rule=h2o:budget=48,alpha=0.5 ", "my-rule budget 64=h2o:alpha=0.5,budget=64",
          "my-rule budget 96=h2o:alpha=0.5,budget=96", "--against my-rule "})
        expect_part(job, lane);
    EXPECT_EQ(job.find("my-rule:"), std::string::npos) << job;
    ASSERT_EQ(run("sweep --model '" + kModel +
                  "' --task needle --samples 4 --lane full --lane h2o:budget=48 "
                  "--lane tova --against " +
                  saved_policy_file("my-rule").string() + " --job parallel --out other"),
              0)
        << output_;
    expect_part(read("other/job.sh"), "--against my-rule=h2o:budget=48,alpha=0.5 ");
}

TEST_F(SavedPolicies, BadNamesAndSpecsAreNotSaved) {
    for (const char* name : {"", ".x", "-x", "a b", "a/b", "a=b", "a:b", "a,b", "ä", "x.policy.json"})
        expect_part(what_of([&] { save_policy({name, "h2o", "", ""}); }), "is no name of a policy");
    EXPECT_NE(what_of([] { save_policy({std::string(41, 'a'), "h2o", "", ""}); }), "");
    EXPECT_EQ(what_of([] { save_policy({std::string(40, 'a'), "h2o", "", ""}); }), "");
    for (const char* name : {"tova", "TOVA", "full"})
        expect_part(what_of([&] { save_policy({name, "h2o", "", ""}); }), "is a preset; take another name");
    expect_part(what_of([] { save_policy({"x", "h2o:budgt=4", "", ""}); }), "did you mean 'budget'?");
    expect_part(what_of([] { save_policy({"x", "h2o", "two\nlines", ""}); }), "one line of at most 400");
}

TEST_F(SavedPolicies, FilesOfOthersAreRefusedInOneLine) {
    EXPECT_EQ(fault_of(with("version", "9.9")), "");
    const std::string file = path("theirs.policy.json");
    expect_part(fault_of("[1]"), "cannot read " + file + ": it is not a JSON object");
    expect_part(fault_of("{\"name\": }"), "is not JSON at line 1, column 10");
    expect_part(fault_of(with("budget", 64)), "'budget' is no key of a saved policy, which has name, spec");
    expect_part(fault_of(with("spec", "h2o:budgt=64")), "character 5");
    expect_part(fault_of(with("spec", "h2o:heads=/etc/passwd")), "spec");
    expect_part(fault_of(with("spec", 5)), "spec is 5");
    expect_part(fault_of(with("name", "h2o")), "name: 'h2o' is a preset");
    expect_part(fault_of(with("name", "../../x")), "is no name of a policy");
    expect_part(fault_of(with("about", "red \x1b[31m")), "about: the sentence about it is one line");
    expect_part(fault_of("{\"name\": \"theirs\"}"), "spec");
    json many = json::array();
    for (int i = 0; i < 40; ++i) many.push_back(i);
    expect_part(fault_of(with("spec", many)), "at most 16 are read");
    EXPECT_NE(fault_of(std::string((2 << 20) + 1, ' ')), "");
    EXPECT_NE(what_of([&] { (void)read_saved_policy(path("nothing.policy.json")); }), "");
    EXPECT_NE(what_of([&] { (void)read_saved_policy(folder_); }), "");
}

TEST_F(SavedPolicies, KeysReplaceTheSavedOnes) {
    const LaneSpec lane = parse_lane_spec("key:budget=64,score=(max(p,s)),alpha@L0-1.H2=0.5,alpha@L3=0.25");
    const auto changed = [&](const std::string& items) {
        const std::string text = changed_spec_text(lane, items);
        EXPECT_EQ(parse_lane_spec(text), parse_lane_spec(format_lane_spec(parse_lane_spec(text)))) << text;
        return text;
    };
    EXPECT_EQ(changed("budget=32"), "key:score=(max(p,s)),alpha@L0-1.H2=0.5,alpha@L3=0.25,budget=32");
    EXPECT_EQ(changed("sinks=2, budget = 9"),
              "key:score=(max(p,s)),alpha@L0-1.H2=0.5,alpha@L3=0.25,sinks=2, budget = 9");
    EXPECT_EQ(changed("alpha@L3,L5=1"), "key:budget=64,score=(max(p,s)),alpha@L0-1.H2=0.5,alpha@L3,L5=1");
    EXPECT_EQ(changed("score=(p)"), "key:budget=64,alpha@L0-1.H2=0.5,alpha@L3=0.25,score=(p)");
    EXPECT_EQ(changed_spec_text(lane, "budget={a}").substr(0, 4), "key:");
    EXPECT_TRUE(changed_spec_text(lane, "budget={a}").ends_with(",budget={a}"));
}

TEST_F(SavedPolicies, ANameStandsForAPreset) {
    save_policy({"my-rule", "h2o:budget=48,alpha=0.5", "", ""});
    EXPECT_EQ(with_saved_policy("my-rule"), "my-rule=h2o:budget=48,alpha=0.5");
    EXPECT_EQ(with_saved_policy(" my-rule "), "my-rule=h2o:budget=48,alpha=0.5");
    EXPECT_EQ(with_saved_policy("my-rule:budget=64"), "my-rule budget 64=h2o:alpha=0.5,budget=64");
    EXPECT_EQ(with_saved_policy("ten=my-rule:budget=10"), "ten=h2o:alpha=0.5,budget=10");
    // A file that was sent is read from where it lies, and may have a name that is also saved.
    write_text_file(path("theirs.policy.json"), R"({"name": "my-rule", "spec": "tova:budget=16"})");
    EXPECT_EQ(with_saved_policy(path("theirs.policy.json")), "my-rule=tova:budget=16");
    EXPECT_EQ(with_saved_policy(path("theirs.policy.json") + ":every=4"),
              "my-rule every 4=tova:budget=16,every=4");
    // Presets win, also over a file that somebody put there.
    write_text_file(path("data/keyhole/policies/tova.policy.json"), with("name", "x"));
    for (const char* same : {"tova", "tova:budget=4", "a=tova", "nothing:budget=4", "", "=", ":"})
        EXPECT_EQ(with_saved_policy(same), same);
    expect_part(what_of([] { (void)with_saved_policy("my-rul:budget=4"); }), "did you mean 'my-rule'?");
    EXPECT_EQ(command_with_saved_policy("lane 1 my-rule"), "lane 1 my-rule=h2o:budget=48,alpha=0.5");
    EXPECT_EQ(command_with_saved_policy("add my-rule"), "add my-rule=h2o:budget=48,alpha=0.5");
    for (const char* same : {"fork 1", "remove 1", "say \"my-rule\"", "lane", "lane 1", "add", "", "add h2o"})
        EXPECT_EQ(command_with_saved_policy(same), same);
}

TEST_F(SavedPolicies, StandOnTheCommandLine) {
    ASSERT_EQ(run("presets --save-policy my-rule=h2o:budget=64,alpha=0.5 --about 'Half as long.'"), 0);
    expect_part(output_, "saved my-rule as " + path("data/keyhole/policies/my-rule.policy.json"));
    ASSERT_EQ(run("presets --save-policy wide=my-rule:budget=96"), 0) << output_;
    ASSERT_EQ(run("presets --save-policy my-rule=my-rule:alpha=0.25"), 0) << output_;
    expect_part(output_, "; before it was h2o:budget=64,alpha=0.5");
    ASSERT_EQ(run("presets"), 0);
    expect_part(output_, "\nsaved: yours, in " + path("data/keyhole/policies"));
    expect_part(output_, "  wide        h2o:budget=96,alpha=0.5\n");
    ASSERT_EQ(run("presets --json"), 0);
    const json saved = json::parse(output_)["saved"];
    ASSERT_EQ(saved.size(), 2u);
    EXPECT_EQ(saved[0]["name"], "my-rule");
    EXPECT_EQ(saved[0]["spec"], "h2o:budget=64,alpha=0.25");
    ASSERT_EQ(run("completion bash"), 0);
    expect_part(output_, " my-rule wide'");

    // A run of the name is that of its spec, bit for bit, and its trace holds the spec.
    const std::string decode = "decode --model '" + kModel + "' -f '" + kPrompt + "' --tokens 4 --lane full ";
    ASSERT_EQ(run(decode + "--lane wide:budget=80 --save named.keyhole"), 0) << output_;
    ASSERT_EQ(run(decode + "--lane h2o:budget=80,alpha=0.5 --save plain.keyhole"), 0) << output_;
    const StepList named = read_trace(path("named.keyhole")), plain = read_trace(path("plain.keyhole"));
    ASSERT_EQ(named.size(), plain.size());
    const LaneRecord &a = named.back()->lanes[1], &b = plain.back()->lanes[1];
    EXPECT_EQ(a.info->spec, "wide budget 80=" + b.info->spec);
    EXPECT_EQ(a.entropy, b.entropy);
    EXPECT_EQ(a.use.stored_tokens, b.use.stored_tokens);
    write_text_file(path("steps.txt"), "+1 lane 1 my-rule\n");
    ASSERT_EQ(run(decode + "--lane tova:budget=64 --script steps.txt --save script.keyhole"), 0) << output_;
    EXPECT_EQ(read_trace(path("script.keyhole")).back()->lanes[1].info->spec,
              "my-rule=h2o:budget=64,alpha=0.25");

    EXPECT_EQ(run("presets --save-policy tova=h2o"), 2);
    expect_part(output_, "'tova' is a preset; take another name");
    EXPECT_EQ(run("presets --save-policy tova"), 2);
    expect_part(output_, "NAME=LANE is needed");
    EXPECT_EQ(run("presets --about x"), 2);
    EXPECT_EQ(run(decode + "--lane my-rul"), 2);
    expect_part(output_, "did you mean 'my-rule'? saved: my-rule wide");
    EXPECT_EQ(run(decode + "--lane ./none.policy.json"), 1) << output_;
    EXPECT_EQ(run("presets --save-policy new=h2o --remove-policy wide"), 2);
    expect_part(output_, "--save-policy excludes --remove-policy");
    ASSERT_EQ(run("presets --remove-policy wide"), 0);
    EXPECT_EQ(run("presets --remove-policy wide"), 2);
    expect_part(output_, "there is no saved policy 'wide'; saved: my-rule");
}

}  // namespace
}  // namespace keyhole::testing::test_saved_policies
