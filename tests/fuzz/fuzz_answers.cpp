// Fuzzes answers.csv of a sweep. A refused file keeps its bytes. An accepted file holds only what eval can
// have written, and survives a round trip.
#include "engine/base/mapped_file.h"
#include "engine/eval/answer_file.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/piece_mutator.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole::fuzz_answers {

namespace {

[[noreturn]] void stop(const char* what, std::string_view text) {
    std::fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(text.size()), text.data());
    std::abort();
}

constexpr std::string_view kHeader =
    "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held,kl,made_by\n";
/// Files with these are written anew.
constexpr std::string_view kMakerlessHeader =
                               "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,"
                               "held,kl\n",
                           kHeaderWithoutKl =
                               "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,"
                               "held\n",
                           kPlacelessHeader = "questions,lane,question,right,nats,tokens,bytes,measures\n",
                           kOldHeader = "questions,lane,question,right,nats,tokens,bytes\n";

/// Splits lines by the one CSV rule that eval needs, so that every answer in the file is looked up.
void check_answers(const AnswerFile& file, std::string_view text) {
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        const std::vector<std::string> f = split_csv(text.substr(0, end));
        const auto found = file.find(f.at(0), f.at(1), std::atoi(f.at(2).c_str()));
        if (!found || !std::isfinite(found->nats) || found->nats < 0 || found->n_tokens < 1 ||
            found->n_bytes < 0 ||
            std::any_of(found->measures.begin(), found->measures.end(),
                        [](double m) { return !(m >= 0 && m <= 1); }) ||
            found->held < 0 || found->held > 1 || found->kl < 0 || found->depth < 0 || found->depth > 1 ||
            found->distance < 0)
            stop("an answer that eval cannot have written", text.substr(0, end));
        std::string again;
        for (const std::string& field : f) again += (again.empty() ? "" : ",") + csv_field(field);
        if (!f.front().empty() && split_csv(again) != f) stop("other fields come back", again);
        (void)file.others(f.at(0));
        text.remove_prefix(end + 1);
    }
}

void check(const std::string& input) {
    const MemoryFile memory(input);
    try {
        AnswerFile file(memory.path());
        std::string text = read_text_file(memory.path());
        const bool is_new =
            std::ranges::any_of(std::array{kOldHeader, kPlacelessHeader, kHeaderWithoutKl, kMakerlessHeader},
                                [&](std::string_view header) { return input.starts_with(header); });
        if (!text.starts_with(kHeader) || (!is_new && !input.starts_with(text) && text != kHeader))
            stop("the file became another", text);
        check_answers(file, std::string_view(text).substr(kHeader.size()));
        const Outcome outcome{0.1, 3, 5, true, {0.5, 1}};
        file.add("a, \"set\"", "h2o:budget=8,alpha=0.5", 7, outcome);
        file.flush();
        const auto found = AnswerFile(memory.path()).find("a, \"set\"", "h2o:budget=8,alpha=0.5", 7);
        if (!found || found->nats != outcome.nats || !found->right || found->measures != outcome.measures)
            stop("an answer is lost", text);
    } catch (const Error&) {
        if (read_text_file(memory.path()) != input) stop("a file that was refused has changed", input);
        throw;
    }
}

constexpr std::string_view kWords[] = {"questions",
                                       "lane",
                                       "question",
                                       "right",
                                       "nats",
                                       "tokens",
                                       "bytes",
                                       "needle seed=1 model=0123456789abcdef",
                                       " backend=cuda",
                                       "full",
                                       "\"h2o:budget=8,alpha=0.5\"",
                                       "\"\"",
                                       "q,full,0,1,0.5,2,3\n",
                                       "\r"};

}  // namespace

static int run(const std::uint8_t* data, std::size_t size) {
    const std::string input(text_of(data, size));
    expect_error_or_none([&] { check(input); });
    expect_error_or_none([&] { check(std::string(kHeader) + input); });
    expect_error_or_none([&] { check(std::string(kOldHeader) + input); });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    return mutate_pieces(data, size, max_size, seed, "\n,\"", kWords);
}

static const FuzzTarget target("answers", run, mutate);

}  // namespace keyhole::fuzz_answers
