/// Reads a prompt from a file, and what is known about it from a JSON file beside it. Any thread; knows no
/// session.
///
/// Beside `story.txt` may lie `story.prompt.json`, an object with any of these members:
///     answer  the right answer: an answer that contains it as whole words is right
///     watch   words of the prompt to watch, and to look at first
///     stop    texts that end an answer; default: ["\n"]; []: only the model ends it
///     shows   a line on what there is to see
#pragma once

#include "engine/run/answer.h"

#include <filesystem>
#include <string>

namespace keyhole {

struct PromptGuide {
    std::string answer;  ///< empty: no right answer is known
    std::string watch;   ///< empty: none
    AnswerEnd end;
    std::string shows;  ///< empty: nothing is said
    bool operator==(const PromptGuide&) const = default;
};

struct PromptFile {
    /// Without a line end at its end, after which a model would not answer, and without a byte order mark.
    std::string text;
    PromptGuide guide;
};

/// Throws Error(bad_file) with the file, and with the member that is unknown or has another type. A pipe is
/// read too; it has no guide.
PromptFile read_prompt_file(const std::filesystem::path& file);

}  // namespace keyhole
