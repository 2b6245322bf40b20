/// What a chat template writes around what is said, as it stands in records. Plain; any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// What a template writes around what is said. A conversation is
///
///     opening TEXT user_end ANSWER answer_end TEXT user_end ANSWER answer_end TEXT ...
struct ChatParts {
    std::string opening;     ///< BOS and a system message of the template's own included
    std::string user_end;    ///< up to where the answer begins
    std::string answer_end;  ///< contains end_token
    std::string end_token;   ///< the model writes it after an answer; empty: the template has none
    bool operator==(const ChatParts&) const = default;
};

/// Returns which tokens belong to the template and not to what was said: [n_tokens], by the tokens' bytes,
/// special tokens included. A system message counts as the template's.
std::vector<bool> template_tokens(const ChatParts& parts, std::span<const std::string> tokens);

}  // namespace keyhole
