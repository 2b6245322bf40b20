#include "engine/run/prompt_file.h"

#include "engine/base/error.h"
#include "engine/base/json_file.h"
#include "engine/base/mapped_file.h"
#include "engine/base/standard_input.h"

#include <nlohmann/json.hpp>

#include <string_view>

namespace keyhole {

namespace {

constexpr std::string_view kGuideEnd = ".prompt.json";
constexpr JsonBounds kGuideBounds{1 << 20, 1 << 12};
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // some editors begin UTF-8 with it

std::string text_of(const std::filesystem::path& path, const std::string& name, const nlohmann::json& value,
                    std::string_view wanted = "a text") {
    if (!value.is_string()) fail(ErrorCode::bad_file, "{}: '{}' must be {}", path.string(), name, wanted);
    return value.get<std::string>();
}

PromptGuide read_guide(const std::filesystem::path& path) {
    PromptGuide guide;
    const nlohmann::json json = read_json_object(path, kGuideBounds);
    for (const auto& [name, value] : json.items()) {
        if (name == "answer") {
            guide.answer = text_of(path, name, value);
        } else if (name == "watch") {
            guide.watch = text_of(path, name, value);
        } else if (name == "shows") {
            guide.shows = text_of(path, name, value);
        } else if (name == "stop") {
            constexpr std::string_view kTexts = "a list of texts";
            if (!value.is_array()) fail(ErrorCode::bad_file, "{}: 'stop' must be {}", path.string(), kTexts);
            guide.end.stop.clear();
            for (const nlohmann::json& stop : value) {
                guide.end.stop.push_back(text_of(path, "stop", stop, kTexts));
                if (guide.end.stop.back().empty())
                    fail(ErrorCode::bad_file, "{}: 'stop' holds an empty text, which would end every answer",
                         path.string());
            }
        } else {
            fail(ErrorCode::bad_file, "{}: '{}' is unknown; known are answer, watch, stop and shows",
                 path.string(), name);
        }
    }
    return guide;
}

/// Returns what lies beside a prompt file.
PromptGuide guide_beside(const std::filesystem::path& file) {
    std::filesystem::path beside = file;
    beside.replace_extension(kGuideEnd);
    std::error_code ignored;
    const bool has_guide =
        file != kStandardInput && beside != file && std::filesystem::is_regular_file(beside, ignored);
    return has_guide ? read_guide(beside) : PromptGuide{};
}

}  // namespace

PromptFile read_prompt_file(const std::filesystem::path& file) {
    const std::string name = file.filename().string();
    if (name.ends_with(kGuideEnd))
        fail(ErrorCode::bad_file,
             "{} says what is known about a prompt; give the text beside it, such as {}.txt", file.string(),
             name.substr(0, name.size() - kGuideEnd.size()));
    constexpr std::size_t kMostBytes = 64 << 20;  // more than any context holds
    PromptFile prompt;
    prompt.text = read_text_input(file, kMostBytes);
    if (prompt.text.starts_with(kByteOrderMark)) prompt.text.erase(0, kByteOrderMark.size());
    if (prompt.text.ends_with('\n')) prompt.text.pop_back();
    if (prompt.text.ends_with('\r')) prompt.text.pop_back();
    prompt.guide = guide_beside(file);
    return prompt;
}

}  // namespace keyhole
