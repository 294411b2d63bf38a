/* SPDX-License-Identifier: Apache-2.0 */

/* Messages on stderr, for failures that the interface cannot return. */

#ifndef USRBIO_LOG_H
#define USRBIO_LOG_H

enum usrbio_log_level { USRBIO_DEBUG, USRBIO_INFO, USRBIO_WARN, USRBIO_ERROR, USRBIO_SILENT };

/* Preserves errno, so that it can be called between a failure and its report. */
__attribute__((format(printf, 2, 3))) void usrbio_log(enum usrbio_log_level level, const char *format, ...);

/* DBG*, INFO, WARN*, ERR*, CRITICAL and FATAL; anything else is WARN. */
enum usrbio_log_level usrbio_log_level_of(const char *name);

#endif
