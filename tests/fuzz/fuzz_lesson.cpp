// Fuzzes the reader of lessons: a lesson that is accepted keeps its bounds, and is equal after it was written
// and read again.
#include "app/lessons/lesson_claims.h"
#include "app/lessons/lesson_file.h"

#include "tests/fuzz/structure.h"

namespace keyhole::fuzz_lesson {

static int run(const std::uint8_t* data, std::size_t size) {
    expect_error_or_none([&] {
        const Lesson read = parse_lesson(text_of(data, size), "fuzz.json");
        if (read.steps.empty() || read.title.empty()) std::abort();
        for (std::size_t i = 0; i < read.steps.size(); ++i) {
            const LessonStep& step = read.steps[i];
            if (count_words(step.text) > Lesson::kMostWords || count_words(step.reveal) > Lesson::kMostWords)
                std::abort();
            if (step.predict && step.predict->kind == Prediction::Kind::choice &&
                static_cast<std::size_t>(step.predict->right) >= step.predict->choices.size())
                std::abort();
            if (step.predict && step.predict->kind == Prediction::Kind::slider &&
                static_cast<std::size_t>(step.predict->claim) >= step.claims.size())
                std::abort();
            const Evidence none;
            for (const Claim& claim : step.claims) {
                (void)claim_text(claim);
                if (!measure_claim(claim, none).pending) std::abort();
            }
            (void)with_values(step.reveal, step.claims, {});
            (void)run_of_step(read, static_cast<int>(i));
        }
        const std::string text = lesson_text(read);
        if (!(parse_lesson(text, "again.json") == read)) std::abort();
    });
    return 0;
}

static std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed) {
    return mutate_text(data, size, max_size, seed,
                       {"kept", "answer", "evict 1 \"4821\" L4.H1", "step 20", "rewind +3", "prompt",
                        "h2o:budget=64", "{1}", "fault 1 mask"});
}

static const FuzzTarget target("lesson", run, mutate);

}  // namespace keyhole::fuzz_lesson
